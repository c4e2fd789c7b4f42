"""Announced batch shapes against the batches of the pipeline."""

import numpy as np
import pytest

from configs import dates, digits, langid, langid_mlm, pydoc
from experiment import sections
from input_pipeline import pipeline
from input_pipeline.batch_shapes import row_outline
from training.infer_sizes import image_sizes

CASES = {
    "pairs": (dates, {}),
    "pairs with a decoder alone": (
        dates,
        {"model.family": "decoder", "task.objective": "prefix_lm", "data.length": 96},
    ),
    "text": (pydoc, {}),
    "packed text": (pydoc, {"data.packing": True}),
    "a prefix": (pydoc, {"task.objective": "prefix_lm"}),
    "masked text": (langid_mlm, {"data.buckets": ()}),
    "next sentences": (
        pydoc,
        {"model.family": "encoder", "task.objective": "masked_lm", "task.next_sentence": True},
    ),
    "spans": (
        pydoc,
        {
            "model.family": "encoder_decoder",
            "task.objective": "span_corruption",
            "data.encoder_length": 256,
            "data.length": 96,
        },
    ),
    "classes": (langid, {"data.buckets": ()}),
    "classes and masked tokens": (langid, {"data.buckets": (), "task.auxiliary_masked_lm": 0.5}),
    "images": (digits, {"data.mixup": 0.0}),
    "mixed images": (digits, {"data.mixup": 0.2}),
}


def loaded(case: str):
    module, changes = CASES[case]
    config = module.get_config().to_dict()
    for key, value in {"data.batch_size": 4, "model.encoder_layers": 1, **changes}.items():
        section, name = key.split(".")
        config[section][name] = value
    experiment = sections.from_mapping(config)
    given = dict(objective=experiment.task.objective, masking=experiment.masking)
    return experiment, given, pipeline.load(experiment.data, **given, seed=0)


@pytest.mark.parametrize("case", CASES)
def test_an_outline_has_the_shapes_of_real_batches(case):
    experiment, given, data = loaded(case)
    shape = data.image_shape or (1, 1, 1)
    row = row_outline(experiment.data, **given, image_shape=shape)
    batch = data.train_batch(0)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: ((4, *np.shape(x)), np.asarray(x).dtype) for name, x in row.items()
    }
    if data.image_shape:
        assert image_sizes(experiment.model, shape) == dict(image_size=8, image_channels=1)
