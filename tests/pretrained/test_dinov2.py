"""DINOv2 on images of another size than its table of positions is for, against transformers."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained import image_processor
from tests.pretrained.transformers_models import oracle, randomize

SIZE = 20  # of the images in config.json, in patches of 4


def published(directory, size):
    """A random model whose images are cropped to `size`."""
    _, hf = oracle()
    config = hf.Dinov2Config(
        hidden_size=12, num_attention_heads=2, num_hidden_layers=1, mlp_ratio=2, image_size=SIZE,
        patch_size=4, layerscale_value=0.5,
    )  # fmt: skip
    model = randomize(hf.Dinov2Model(config), 3)
    model.save_pretrained(directory)
    crop = {"height": size, "width": size}
    settings = dict(do_center_crop=True, crop_size=crop, size={"shortest_edge": size + 5})
    (directory / image_processor.FILE).write_text(json.dumps(settings))
    return model.double()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [12, 20, 28])
def test_positions_are_interpolated_as_in_transformers(size, tmp_path):
    torch, hf = oracle()
    theirs = published(tmp_path / "theirs", size)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    run = loaded_run.load(tmp_path / "in")
    data = run.experiment.data
    assert (run.model_config.image_size, data.image_size, data.image_edge) == (size, size, size + 5)
    assert run.model_config.position_image_size == (0 if size == SIZE else SIZE)
    images = np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)
    _, found = run.model.apply({"params": run.params}, images)
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    again = hf.Dinov2Model.from_pretrained(tmp_path / "out").double().eval()
    for model in (theirs, again):
        with torch.no_grad():
            given = torch.tensor(images.transpose(0, 3, 1, 2)).double()
            expected = model(given).last_hidden_state
        np.testing.assert_allclose(found, expected, atol=3e-5)
    written = json.loads((tmp_path / "out" / image_processor.FILE).read_text())
    assert written["crop_size"] == {"height": size, "width": size}
    tables = [
        next(x for n, x in load_file(tmp_path / name / "model.safetensors").items() if "posit" in n)
        for name in ("theirs", "out")
    ]
    np.testing.assert_array_equal(*tables)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_a_size_that_patches_do_not_divide_is_refused(tmp_path):
    published(tmp_path / "theirs", 14)
    with pytest.raises(ConfigError, match=r"crop_size=.*patches of 4 do not divide it"):
        convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
