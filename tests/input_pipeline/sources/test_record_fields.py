"""Images in the records of public data sets follow the rule of image folders."""

import io
import types

import numpy as np
import pytest
from absl import logging
from PIL import Image

from input_pipeline.sources import record_fields
from input_pipeline.sources.files import images
from tests.tiny import data_config

FEATURES = {"label": types.SimpleNamespace(names=["cat", "dog"])}
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 5, 3), np.uint8)


@pytest.fixture
def logged(monkeypatch):
    """The warnings that are logged."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    return lines


def encoded(mode):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, "PNG")
    return file.getvalue()


def stored(modes, name, **more):
    rows = [{"image": encoded(mode), "label": n % 2} for n, mode in enumerate(modes)]
    return record_fields.StoredSplit(rows, [(name, 0, len(rows))], **more)


def load(tmp_path, modes, *, image_mode=None, **more):
    """The first two images are the training split, the others are held out."""
    data = data_config(
        source="huggingface", name="set", kind="images", cache_dir=str(tmp_path / "cache")
    )
    return record_fields.splits(
        data, stored(modes[:2], "train", **more), stored(modes[2:], "validation", **more),
        features=FEATURES, identity=["set", *modes], description={}, image_mode=image_mode,
    )  # fmt: skip


def folders(tmp_path, modes):
    for number, mode in enumerate(modes):
        split, label = "train" if number < 2 else "validation", ("cat", "dog")[number % 2]
        path = tmp_path / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(mode))
    keys = dict(path=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    return images.load(data_config(source="image_files", **keys))


def pixels(splits):
    (evals,) = splits.evals.values()
    return [example["image"] for example in [*splits.train, *evals]]


@pytest.mark.parametrize(
    "modes",
    [
        ("L", "L", "L", "L"), ("L", "LA", "L", "1"), ("L", "L", "RGB", "L"),
        ("L", "RGB", "L", "L"), ("RGB", "L", "LA", "RGBA"), ("RGB", "RGB", "RGB", "RGB"),
    ],
)  # fmt: skip
def test_channels_and_warnings_are_those_of_the_same_images_in_folders(modes, tmp_path, logged):
    expected = pixels(folders(tmp_path / "folders", modes))
    of_folders = [line.partition(" (such as")[0] for line in logged]
    logged.clear()
    found = pixels(load(tmp_path, modes))
    for image, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(image, other, strict=True)
    assert [line.partition(" (such as")[0] for line in logged] == of_folders
    # The second time, the counts come from the cache.
    again = list(logged)
    logged.clear()
    load(tmp_path, modes)
    assert logged == again


def test_a_warning_names_a_record(tmp_path, logged):
    load(tmp_path, ("RGB", "RGB", "RGB", "LA"))
    assert [line.partition("(such as ")[2].partition(")")[0] for line in logged] == [
        "set, split validation, record 1"
    ] * 2


def test_a_mode_that_the_data_set_names_is_kept(tmp_path, logged):
    splits = load(tmp_path, ("RGB", "L", "RGBA", "L"), image_mode="L")
    assert {image.shape for image in pixels(splits)} == {(5, 5, 1)} and not logged


@pytest.mark.parametrize("size", [0, 8, 40, 10**6])
def test_the_start_of_a_file_is_enough_or_all_of_it_is_read(size, tmp_path, logged):
    modes = ("L", "LA", "RGB", "P")
    starts = iter([[encoded(mode)[:size] or None for mode in part] for part in (modes[:2], modes)])
    load(tmp_path, modes, image_starts=lambda: next(starts)[-2:])
    assert [line.partition(" (")[0] for line in logged] == [
        "2 of 4 images are grey", "1 of 4 images have transparency",
    ]  # fmt: skip


def test_what_cannot_be_read_is_not_counted_and_not_remembered(tmp_path, logged):
    rows = [{"image": each, "label": 0} for each in (encoded("L"), b"no image", None)]
    cut = record_fields.StoredSplit([*rows, {"image": {"bytes": None, "path": None}}], [])
    data = data_config(name="set", cache_dir=str(tmp_path))
    found = record_fields._colours(data, {"train": cut}, [])
    assert (found.readable, found.grey, found.mode) == (1, 1, "L")
    assert not list(tmp_path.iterdir())
