"""The embedded sources through the whole pipeline, unlike test_pipeline with its small ones."""

import numpy as np

from input_pipeline import pipeline
from tests.tiny import data_config, masking


def load(source, objective, length, encoder_length=72):
    sizes = dict(batch_size=16, length=length, encoder_length=encoder_length, prefetch=0)
    data = data_config(source=source, **sizes)
    return pipeline.load(data, objective=objective, masking=masking(), seed=0)


def test_dates():
    data = load("dates", "seq2seq", length=11)
    batch = data.train_batch(7)
    for target in batch["targets"]:
        np.datetime64(data.tokenizer.decode(target))
    assert data.description["too_long"] == {"train": 0, "dates": 0, "languages": 0}


def test_pydoc():
    data = load("pydoc", "causal_lm", length=256)
    assert data.train_batch(0)["weights"].mean() > 0.99
    assert data.eval_bytes("held_out", 64) == data.description["contents"][""]["held_out_bytes"]


def test_names():
    data = load("names", "classify_text", length=72)
    assert data.train_batch(0)["labels"].max() < len(data.labels)


def test_digits():
    data = load("digits", "classify_images", length=1)
    assert data.train_batch(0)["images"].shape == (16, *data.image_shape) == (16, 8, 8, 1)
