"""Images for published vision models: resized and normalised as the published files say."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from experiment.schema import ConfigError
from inference.prompts import ImagePrompts
from pretrained import image_processor

SIZE = 32
SQUARE = {"height": SIZE, "width": SIZE}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
CROPPED = dict(size={"shortest_edge": SIZE}, do_center_crop=True, crop_size=SQUARE)
LARGER = CROPPED | dict(size={"shortest_edge": 37})  # as of DINOv2
STRETCHED = CROPPED | dict(size={"height": 37, "width": 37})  # as of DeiT


def read(tmp_path, **settings):
    (tmp_path / image_processor.FILE).write_text(json.dumps(settings))
    return image_processor.read(tmp_path, SIZE)


def picture(tmp_path, width, height):
    """Smooth, with some noise: filters and crops all differ on it."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(rows / (3 + c) + columns / 5) for c in range(3)]
    pixels = np.stack(waves, axis=-1) + rng.normal(0, 9, (height, width, 3))
    path = tmp_path / f"{width}x{height}.png"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


def both(settings, path, tmp_path):
    """The image as ours and as transformers prepare it, [H, W, C]."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    data = SimpleNamespace(image_upright=True, **read(tmp_path, **settings))
    ours = ImagePrompts(SIZE, 3, data)(str(path), "line 1")["images"]
    theirs = ViTImageProcessorPil(**{"size": SQUARE, **settings})(Image.open(path))
    return ours, np.asarray(theirs["pixel_values"][0]).transpose(1, 2, 0)


@pytest.mark.oracle
@pytest.mark.parametrize("resample", range(6))
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, (60, 45)),
        (dict(size=SQUARE), (60, 45)),
        (dict(size=SQUARE), (21, 50)),
        (CROPPED, (2 * SIZE, 3 * SIZE)),
        (CROPPED, (SIZE, SIZE)),
        (CROPPED, (60, 45)),
        (CROPPED, (21, 50)),
        (CROPPED, (100, 33)),
        (CROPPED, (31, 37)),
        (LARGER, (60, 45)),
        (LARGER, (21, 50)),
        (STRETCHED, (60, 45)),
        (STRETCHED, (37, 37)),
    ],
)
def test_pixels_are_those_of_transformers(resample, sizes, shape, tmp_path):
    settings = dict(resample=resample, image_mean=MEAN, image_std=STD, **sizes)
    ours, theirs = both(settings, picture(tmp_path, *shape), tmp_path)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("resample", range(6))
@pytest.mark.parametrize("sizes", [dict(size=SQUARE), CROPPED, LARGER, STRETCHED])
def test_settings_are_written_back_as_read(resample, sizes, tmp_path):
    settings = dict(
        do_resize=True, resample=resample, do_rescale=True, rescale_factor=1 / 255,
        do_normalize=True, image_mean=MEAN, image_std=STD, **sizes,
    )  # fmt: skip
    found = read(tmp_path, **settings)
    image_processor.write(tmp_path, found, SIZE, channels=3)
    written = json.loads((tmp_path / image_processor.FILE).read_text())
    assert written == settings | {"image_processor_type": "ViTImageProcessor"}


def test_a_note_says_that_exported_pixels_differ_slightly(tmp_path):
    """Older runs crop before they resize, which the file has no word for."""
    found = read(tmp_path, **CROPPED)
    assert found["image_fit"] == "center_crop"
    assert image_processor.write(tmp_path, found, SIZE, channels=3) == ""
    note = image_processor.write(tmp_path, found | dict(image_fit="crop"), SIZE, channels=3)
    assert note.startswith("data.image_fit=crop crops before it resizes")
    assert json.loads((tmp_path / image_processor.FILE).read_text())["do_center_crop"]


def test_the_defaults_are_those_of_a_vit(tmp_path):
    assert image_processor.read(tmp_path, SIZE) == {}
    half = dict(image_mean=(0.5,), image_std=(0.5,))
    usual = dict(image_fit="stretch", image_edge=0, image_resample="bilinear")
    assert read(tmp_path) == usual | half
    assert read(tmp_path, do_resize=False) == half
    assert read(tmp_path, size=SIZE, do_normalize=False) == usual
    old_names = dict(size=40, do_center_crop=True, crop_size=SIZE)  # of DeiT's first files
    assert read(tmp_path, **old_names, do_normalize=False) == usual | dict(image_edge=40)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(size={"height": 64, "width": 64}), "only 32x32, the model's size, is; resize images"),
        (dict(size={"shortest_edge": SIZE}), "size={'shortest_edge': 32} is not supported"),
        (CROPPED | dict(size={"shortest_edge": 28}), "{'shortest_edge': 28}, cropped to"),
        (CROPPED | dict(size={"height": 36, "width": 40}), "cropped to {'height': 32,"),
        (LARGER | dict(crop_size={"height": 36, "width": 36}), "cropped to {'height': 36,"),
        (dict(resample=6), "resample=6 is not supported; Pillow numbers its filters from 0 to 5"),
        (dict(rescale_factor=1.0), "rescale_factor=1.0 is not supported"),
        (dict(do_rescale=False), "do_rescale=False is not supported"),
    ],
)
def test_unsupported_settings_are_refused(settings, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, **settings)
    assert message in str(error.value)
