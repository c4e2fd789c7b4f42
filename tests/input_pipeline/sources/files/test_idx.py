import gzip
import struct

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.sources.base import MissingSplitError
from input_pipeline.sources.files import idx, images
from tests.tiny import data_config

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (6, 5, 5), np.uint8), np.array([7, 3, 3, 0, 7, 0], np.uint8)
TEST = RNG.integers(0, 256, (2, 5, 5), np.uint8), np.array([3, 7], np.uint8)


def as_idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(directory, *, train=TRAIN, test=TEST, separator="-", ending=""):
    for prefix, (pictures, labels) in {"train": train, "t10k": test}.items():
        for name, array in (("images", pictures), ("labels", labels)):
            content = as_idx(array)
            path = directory / f"{prefix}-{name}{separator}idx{array.ndim}-ubyte{ending}"
            path.write_bytes(gzip.compress(content) if ending else content)


def load(directory, **keys):
    keys = {"eval_split": "test", **keys}
    return images.load(data_config(source="image_files", path=str(directory), **keys))


@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read_exactly(tmp_path, separator, ending):
    write(tmp_path, separator=separator, ending=ending)
    splits = load(tmp_path)
    assert splits.kind == "images" and splits.labels == ("0", "3", "7")
    assert (len(splits.train), list(splits.evals), len(splits.evals["test"])) == (6, ["test"], 2)
    for split, (pictures, labels) in ((splits.train, TRAIN), (splits.evals["test"], TEST)):
        for example, picture, label in zip(split, pictures, labels, strict=True):
            assert example["image"].dtype == np.uint8
            np.testing.assert_array_equal(example["image"], picture[..., None])
            assert splits.labels[example["label"]] == str(label)


def test_images_are_resized_when_asked(tmp_path):
    flat = np.full((6, 4, 8), 77, np.uint8)
    write(tmp_path, train=(flat, TRAIN[1]))
    example = load(tmp_path, image_size=3).train[0]
    np.testing.assert_array_equal(example["image"], np.full((3, 3, 1), 77))


def test_the_digest_follows_the_content_and_not_the_packaging(tmp_path):
    write(tmp_path)
    digest = load(tmp_path).digest
    for path in tmp_path.iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert load(tmp_path).digest == digest
    assert load(tmp_path, image_size=3).digest != digest
    stretched = load(tmp_path, image_size=3, image_fit="stretch")
    assert stretched.digest != load(tmp_path, image_size=3).digest
    write(tmp_path, test=(TEST[0], TEST[1][::-1]), ending=".gz")
    assert load(tmp_path).digest != digest


def changed(name, change):
    def damage(directory):
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return name, damage


def removed(name):
    return name, lambda directory: (directory / name).unlink()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (changed("t10k-labels-idx1-ubyte.gz", lambda b: b[:-9]), "ended before"),
        (changed("t10k-labels-idx1-ubyte.gz", lambda b: as_idx(TEST[1])), "Not a gzipped file"),
        (
            changed("train-images-idx3-ubyte.gz", lambda b: gzip.compress(as_idx(TRAIN[1]))),
            "'00 00 08 01' in place of '00 00 08 03'",
        ),
        (changed("train-images-idx3-ubyte.gz", lambda b: gzip.compress(b"")), "does not begin"),
        (
            changed("train-images-idx3-ubyte.gz", lambda b: gzip.compress(as_idx(TRAIN[0])[:-1])),
            "holds 149 values, but its header promises 6 x 5 x 5",
        ),
        (
            changed("train-images-idx3-ubyte.gz", lambda b: gzip.compress(as_idx(TRAIN[0]) + b"x")),
            "holds 151 values",
        ),
        (
            changed("train-images-idx3-ubyte.gz", lambda b: gzip.compress(as_idx(TRAIN[0][:5]))),
            "has 5 images, but train-labels-idx1-ubyte.gz has 6 labels",
        ),
        (
            changed(
                "train-images-idx3-ubyte.gz",
                lambda b: gzip.compress(as_idx(np.zeros((6, 4, 5), np.uint8))),
            ),
            "5x4 pixels, which is not square; set data.image_size",
        ),
        (
            changed(
                "t10k-labels-idx1-ubyte.gz",
                lambda b: gzip.compress(as_idx(np.array([3, 4], np.uint8))),
            ),
            "entry 1 is the class 4, which no training image has",
        ),
        (removed("t10k-labels-idx1-ubyte.gz"), "data.eval_split='test'"),
        (removed("train-images-idx3-ubyte.gz"), "data.train_split='train'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value[:30],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, damaged, reason):
    write(tmp_path, ending=".gz")
    load(tmp_path)
    name, damage = damaged
    damage(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path)
    message = str(refusal.value)
    assert reason in message and name.removesuffix(".gz") in message
    assert len(message.splitlines()) == 1


def test_mnists_splits_are_named_where_another_is_asked_for(tmp_path):
    write(tmp_path)
    said = r"data\.eval_split='validation'.*'train' and 'test'"
    with pytest.raises(MissingSplitError, match=said) as refused:
        load(tmp_path, eval_split="validation")
    assert (refused.value.split, refused.value.known) == ("validation", ("test", "train"))


def test_is_idx_needs_idx_files(tmp_path):
    assert not idx.is_idx(tmp_path)
    write(tmp_path)
    assert idx.is_idx(tmp_path)
