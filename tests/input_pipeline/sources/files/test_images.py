import os

import numpy as np
import pytest
from absl import logging
from PIL import Image

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.base import MissingSplitError
from input_pipeline.sources.files import checking, images
from input_pipeline.sources.image_decoding import ImageSpec
from tests.tiny import data_config, masking
from train import data_lines


def picture(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape or (6, 6, 3), np.uint8)


def save(path, array, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)


@pytest.fixture
def directory(tmp_path):
    """Two classes of two training images each, and one held-out image of each."""
    for seed, name in enumerate(["cat/a.png", "cat/b.PNG", "dog/c.png", "dog/d.png"]):
        save(tmp_path / "train" / name, picture(seed))
    for seed, name in enumerate(["cat/e.png", "dog/f.png"], start=10):
        save(tmp_path / "validation" / name, picture(seed))
    return tmp_path


@pytest.fixture
def logged(monkeypatch):
    """The warnings that are logged."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    return lines


def load(directory, **keys):
    return images.load(data_config(source="image_files", path=str(directory), **keys))


def refusal(directory, **keys):
    with pytest.raises(ConfigError) as caught:
        load(directory, **keys)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_names_of_files_and_folders_that_are_no_text(directory):
    """File systems allow any bytes; Python reads the others as halves of characters."""
    as_bytes = os.fsencode(directory / "train/dog")
    os.rename(as_bytes + b"/c.png", as_bytes + b"/\xff.png")
    assert len(load(directory).train) == 4
    for split in ("train", "validation"):
        folder = os.fsencode(directory / split)
        os.rename(folder + b"/dog", folder + b"/d\xffg")
    line = refusal(directory)
    assert "the folder 'd\\udcffg' is no text in UTF-8" in line and line.isascii()


def test_saved_images_are_read_exactly(directory):
    (directory / "train/cat/notes.txt").write_text("not an image, and not called one")
    (directory / "train/cat/._a.png").write_text("what some systems leave beside a file")
    (directory / "train/.cache").mkdir()
    splits = load(directory)
    assert splits.kind == "images" and splits.labels == ("cat", "dog")
    assert [example["label"] for example in splits.train] == [0, 0, 1, 1]
    for seed, example in enumerate(splits.train):
        assert example["image"].dtype == np.uint8
        np.testing.assert_array_equal(example["image"], picture(seed))
    assert list(splits.evals) == ["validation"]
    for seed, example in enumerate(splits.evals["validation"], start=10):
        np.testing.assert_array_equal(example["image"], picture(seed))
        assert example["label"] == seed - 10


@pytest.mark.parametrize("ending", ["jpg", "jpeg"])
def test_jpeg_is_read_too(directory, ending):
    smooth = np.add.outer(np.arange(6), np.arange(6)).astype(np.uint8)[..., None] * 20
    save(directory / f"train/cat/0.{ending}", smooth.repeat(3, axis=2))
    found = load(directory).train[0]["image"].astype(int)
    np.testing.assert_allclose(found, smooth.repeat(3, axis=2), atol=12)


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("LA", 1), ("1", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)]
)
def test_images_of_one_kind_decide_about_the_channels(directory, logged, mode, channels):
    for path in [*directory.glob("*/*/*.png"), *directory.glob("*/*/*.PNG")]:
        save(path, picture(0), mode)
    splits = load(directory)
    found = [*splits.train, *splits.evals["validation"]]
    assert {example["image"].shape for example in found} == {(6, 6, channels)}
    if mode in ("L", "LA"):
        grey = np.asarray(Image.fromarray(picture(0)).convert("L"))
        np.testing.assert_array_equal(splits.train[0]["image"][..., 0], grey)
    assert ["transparency" in line for line in logged] == [True] * (mode in ("RGBA", "LA"))


def test_grey_images_with_and_without_transparency_are_grey(tmp_path, logged):
    for number in range(4):
        mode = ("L", "LA")[number // 2]
        for split in ("train", "validation"):
            save(tmp_path / split / ("cat", "dog")[number % 2] / f"{mode}.png", picture(0), mode)
    splits = load(tmp_path)
    grey = np.asarray(Image.fromarray(picture(0)).convert("L"))[..., None]
    for example in [*splits.train, *splits.evals["validation"]]:
        np.testing.assert_array_equal(example["image"], grey)
    (line,) = logged
    assert line.startswith("4 of 8 images have transparency")


@pytest.mark.parametrize("mode", ["L", "1"])
@pytest.mark.parametrize("name", ["train/cat/a.png", "train/dog/c.png", "validation/dog/f.png"])
def test_a_grey_image_among_coloured_ones_is_read_as_colour(directory, logged, name, mode):
    save(directory / name, picture(50), mode)
    splits = load(directory)
    found = [*splits.train, *splits.evals["validation"]]
    names = ["cat/a.png", "cat/b.PNG", "dog/c.png", "dog/d.png", "cat/e.png", "dog/f.png"]
    for seed, short, example in zip([0, 1, 2, 3, 10, 11], names, found, strict=True):
        expected = picture(seed)
        if name.endswith(short):
            grey = np.asarray(Image.fromarray(picture(50)).convert(mode).convert("L"))
            expected = np.stack([grey] * 3, axis=-1)
        np.testing.assert_array_equal(example["image"], expected)
    assert logged == [f"1 of 6 images are grey (such as {directory / name}) and are read as colour"]


def test_one_coloured_image_among_grey_ones_keeps_its_colour(tmp_path, logged):
    for seed in range(20):
        save(tmp_path / f"{('cat', 'dog')[seed % 2]}/{seed:02}.png", picture(seed, 6, 6))
    save(tmp_path / "dog/99.png", picture(99))
    (tmp_path / "cat/broken.png").write_text("not counted")
    splits = load(tmp_path, eval_share=0.3, max_bad_records=1)
    found = [*splits.train, *splits.evals["validation"]]
    assert picture(99).tobytes() in {example["image"].tobytes() for example in found}
    first = tmp_path / "cat/00.png"
    assert f"20 of 21 images are grey (such as {first}) and are read as colour" in logged


def test_files_that_are_not_read_are_counted(directory, logged):
    expected = len(load(directory).train)
    assert not logged
    save(directory / "train/cat/deeper/one.png", picture(1))
    save(directory / "train/cat/.hidden/two.png", picture(2))
    for name in ("train/dog/three.webp", "train/dog/Thumbs.db"):
        (directory / name).write_bytes(b"")
    assert len(load(directory).train) == expected
    assert [line for line in logged if "2 files in the folders of classes are not read" in line]


def transparent_pixels(path):
    rgba = picture(5, 6, 6, 4)
    Image.fromarray(rgba).save(path)
    return rgba[..., :3]


def transparent_palette(path):
    image = Image.fromarray(picture(5)).convert("P")
    image.save(path, transparency=bytes(range(256)))
    return np.asarray(image.convert("RGB"))


def transparent_colour(path):
    Image.fromarray(picture(5)).save(path, transparency=tuple(map(int, picture(5)[0, 0])))
    return picture(5)


def transparent_grey(path):
    grey, alpha = picture(5, 6, 6), picture(6, 6, 6)
    Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]).save(path)
    return np.stack([grey] * 3, axis=-1)


@pytest.mark.parametrize(
    "saved", [transparent_pixels, transparent_palette, transparent_colour, transparent_grey]
)
def test_transparency_is_dropped_with_one_warning(directory, logged, saved):
    expected = saved(directory / "train/dog/c.png")
    saved(directory / "validation/dog/f.png")
    np.testing.assert_array_equal(load(directory).train[2]["image"], expected)
    first = directory / "train/dog/c.png"
    grey = f"2 of 6 images are grey (such as {first}) and are read as colour"
    assert logged == [grey] * (saved is transparent_grey) + [
        f"2 of 6 images have transparency (such as {first}), which is "
        "dropped: pixels keep the colour stored under it; flatten them onto a background first if "
        "the shape is in the transparency"
    ]


def test_the_shorter_side_is_resized_and_the_middle_cut_out(directory):
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, :2], wide[:, 2:6], wide[:, 6:] = 50, 100, 200
    save(directory / "train/cat/a.png", wide)
    save(directory / "train/cat/b.PNG", wide.transpose(1, 0, 2))
    found = load(directory, image_size=4).train
    for index in (0, 1):
        np.testing.assert_array_equal(found[index]["image"], np.full((4, 4, 3), 100))
    assert {example["image"].shape for example in load(directory, image_size=9).train} == {
        (9, 9, 3)
    }


def test_both_sides_are_resized_when_asked(directory):
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, :2], wide[:, 2:6], wide[:, 6:] = 50, 100, 200
    save(directory / "train/cat/a.png", wide)
    stretched = dict(image_size=4, image_fit="stretch", image_resample="box")
    found = load(directory, **stretched).train[0]["image"]
    np.testing.assert_array_equal(found[0, :, 0], [50, 100, 100, 200])


def test_images_of_the_right_size_are_left_alone(directory):
    np.testing.assert_array_equal(load(directory, image_size=6).train[1]["image"], picture(1))


def test_sizes_that_differ_are_refused_with_the_fix(directory):
    save(directory / "train/dog/d.png", picture(3, 6, 7, 3))
    message = refusal(directory)
    assert "train/dog/d.png has 7x6 pixels, unlike the first image's 6x6" in message
    assert "set data.image_size=6" in message
    save(directory / "train/cat/a.png", picture(3, 6, 7, 3))
    assert "train/cat/a.png has 7x6 pixels, which is not square; set data.image_size" in refusal(
        directory
    )


def empty(path):
    path.write_bytes(b"")


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def text(path):
    path.write_text("<html>not found</html>")


def deep(path):
    Image.fromarray(picture(0, 6, 6).astype(np.uint16)).save(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (empty, "is not a PNG or JPEG image"),
        (truncated, "cannot be decoded"),
        (text, "is not a PNG or JPEG image"),
        (deep, "more than 8 bits"),
    ],
)
@pytest.mark.parametrize("name", ["train/cat/a.png", "train/dog/c.png", "validation/dog/f.png"])
def test_a_bad_image_is_refused_by_name_or_skipped_and_logged(
    directory, logged, damage, reason, name
):
    damage(directory / name)
    message = refusal(directory)
    assert f"{name} " in message and reason in message
    assert "raise data.max_bad_records (now 0)" in message

    splits = load(directory, max_bad_records=1)
    assert len(splits.train) + len(splits.evals["validation"]) == 5
    assert len([*splits.train, *splits.evals["validation"]]) == 5  # and all can be read
    (line,) = logged
    assert line.startswith("skipped: ") and name in line and reason in line


def test_more_bad_images_than_allowed_are_counted(directory):
    for name in ("a.png", "b.PNG"):
        empty(directory / "train/cat" / name)
    message = refusal(directory, max_bad_records=1)
    assert "b.PNG" in message and "bad record 2 after" in message and "train/cat/a.png" in message
    assert len(load(directory, max_bad_records=2).train) == 2


def test_images_that_are_fine_are_checked_once(directory, monkeypatch):
    calls, mapped = [], checking.mapped_in_threads

    def counted(*arguments):
        calls.append(arguments)
        return mapped(*arguments)

    load(directory)
    monkeypatch.setattr(checking, "mapped_in_threads", counted)
    load(directory)
    assert calls == []
    (directory / "train/cat/b.PNG").write_bytes(b"no image")
    for _ in range(2):  # what is wrong is not taken for granted
        assert len(load(directory, max_bad_records=1).train) == 3
    assert [len(examples) for _, examples, _ in calls] == [4, 2, 4]


def test_a_directory_without_readable_images_is_refused(directory):
    for path in (directory / "train").rglob("*.*"):
        empty(path)
    assert "not one image can be read; the first: " in refusal(directory, max_bad_records=9)


def test_the_digest_follows_content_names_and_size(directory):
    digest = load(directory).digest
    assert load(directory).digest == digest
    assert load(directory, image_size=6).digest != digest
    ways = [{}, dict(image_fit="stretch"), dict(image_fit="crop"), dict(image_resample="box")]
    assert len({load(directory, image_size=6, **way).digest for way in ways}) == len(ways)
    (directory / "train/cat/a.png").rename(directory / "train/cat/z.png")
    renamed = load(directory).digest
    save(directory / "validation/dog/f.png", picture(99))
    assert len({digest, renamed, load(directory).digest}) == 3


def test_the_digests_of_older_runs_stay():
    older = "ImageForm(mode='RGB', size=6, resize=True)"
    assert ImageSpec("RGB", 6, True, "crop", "bicubic").digest_parts == (older,)
    today = ImageSpec("RGB", 6, True, "center_crop", "bicubic")
    assert today.digest_parts == (older, "center_crop", "bicubic")
    assert len(ImageSpec("RGB", 6, resize=False).digest_parts) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(orientation, tmp_path):
    # How the stored rows and columns become those of the scene, from EXIF's table of orientations.
    turned = {
        1: lambda x: x, 2: np.fliplr, 3: lambda x: x[::-1, ::-1], 4: np.flipud,
        5: lambda x: x.T, 6: lambda x: np.rot90(x, -1), 7: lambda x: x[::-1, ::-1].T,
        8: np.rot90,
    }[orientation]  # fmt: skip
    stored = np.arange(36, dtype=np.uint8).reshape(6, 6)
    exif = Image.Exif()
    exif[274] = orientation
    for name in ("train/cat/a.png", "validation/cat/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.fromarray(stored).save(tmp_path / name, exif=exif)
    upright, as_stored = load(tmp_path), load(tmp_path, image_upright=False)
    assert np.array_equal(upright.train[0]["image"][..., 0], turned(stored))
    assert np.array_equal(as_stored.train[0]["image"][..., 0], stored)
    assert upright.digest != as_stored.digest


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1)])
def test_an_extreme_aspect_ratio_is_cropped_before_resizing(shape):
    """The resized image would have 3.8 billion pixels."""
    image = Image.fromarray(np.full((*shape, 3), 7, np.uint8))
    fitted = ImageSpec("RGB", 256, True, "center_crop").fitted(image)
    np.testing.assert_array_equal(fitted, np.full((256, 256, 3), 7))


def test_the_digest_does_not_follow_the_place(directory):
    digest = load(directory).digest
    moved = directory.rename(directory.with_name("elsewhere"))
    assert load(moved).digest == digest


def test_a_missing_path_is_refused(tmp_path):
    assert refusal("").startswith("data.path is empty")
    assert "--config.data.path=DIR" in refusal("")
    assert refusal(tmp_path / "nowhere").endswith("nowhere is not a directory")


def test_a_missing_split_is_refused_with_those_that_exist(directory):
    message = refusal(directory, eval_split="validatoin")
    assert "data.eval_split='validatoin' is not a folder" in message
    assert "Did you mean 'validation'? There are: train, validation" in message
    assert "data.train_split='cats'" in refusal(directory, train_split="cats")
    with pytest.raises(MissingSplitError) as refused:
        load(directory, eval_split="validatoin")
    assert (refused.value.split, refused.value.known) == ("validatoin", ("train", "validation"))


def test_a_class_without_training_images_is_refused(directory):
    (directory / "train/emu").mkdir()
    assert "train/emu has no file that ends in .png" in refusal(directory)
    (directory / "train/emu").rmdir()
    save(directory / "validation/dogs/g.png", picture(4))
    message = refusal(directory)
    assert "validation/dogs is a class that" in message and "Did you mean 'dog'?" in message


def test_a_split_without_classes_is_refused(directory):
    (directory / "flat").mkdir()
    save(directory / "flat/a.png", picture(0))
    assert "flat has no folders" in refusal(directory, train_split="flat")


def test_class_folders_without_splits_have_a_share_held_out(tmp_path):
    for seed in range(60):
        save(tmp_path / f"{('cat', 'dog')[seed % 2]}/{seed}.png", picture(seed % 40))
    splits = load(tmp_path, eval_share=0.3)
    train, eval_set = splits.train, splits.evals["validation"]
    assert splits.labels == ("cat", "dog") and len(train) + len(eval_set) == 60
    for examples in (train, eval_set):
        assert {example["label"] for example in examples} == {0, 1}
    assert 8 <= len(eval_set) <= 30
    train_images = {example["image"].tobytes() for example in train}
    assert train_images.isdisjoint(example["image"].tobytes() for example in eval_set)
    assert splits.description["held_out_share"] == 0.3
    config = data_config(source="image_files", path=str(tmp_path), eval_share=0.3, image_mean=())
    data = pipeline.load(config, objective="classify_images", masking=masking(), seed=0)
    assert "no named splits: a hash holds out 0.3 (data.eval_share)" in data_lines(data)
    assert load(tmp_path, eval_share=0.2).digest != splits.digest
    before = {example["image"].tobytes() for example in eval_set}
    save(tmp_path / "cat/new.png", picture(100))
    after = {
        example["image"].tobytes() for example in load(tmp_path, eval_share=0.3).evals["validation"]
    }
    assert after - before <= {picture(100).tobytes()} and before <= after


def test_every_class_keeps_training_images(tmp_path):
    for seed in range(40):
        save(tmp_path / f"cat/{seed}.png", picture(seed))
    share = 0.5
    for seed in range(40):
        save(tmp_path / "dog/one.png", picture(seed))
        splits = load(tmp_path, eval_share=share)
        assert {example["label"] for example in splits.train} == {0, 1}
        assert {example["label"] for example in splits.evals["validation"]} == {0}


def test_a_share_that_holds_out_no_image_is_refused(tmp_path):
    save(tmp_path / "cat/a.png", picture(0))
    save(tmp_path / "dog/a.png", picture(1))
    message = refusal(tmp_path, eval_share=1e-9)
    assert "data.eval_share=1e-09 holds out 0 of the 2 images" in message
    (tmp_path / "emu").mkdir()
    assert "emu has no file that ends in .png" in refusal(tmp_path)


def test_a_missing_split_says_which_layouts_are_read(directory):
    layout = "image_files reads <split>/<class>/*.png or .jpg, or <class>/*.png without splits"
    assert layout in refusal(directory, train_split="learn")
    (directory / "flat").mkdir()
    assert layout in refusal(directory, train_split="flat")


def test_image_files_through_the_pipeline(directory):
    config = data_config(source="image_files", path=str(directory), batch_size=4, mixup=0.2)
    data = pipeline.load(
        config,
        objective="classify_images",
        masking=masking(),
        seed=0,
    )
    assert data.image_shape == (6, 6, 3) and data.labels == ("cat", "dog")
    assert data.description["eval_rows"] == {"validation": 2}
    assert data.train_batch(0)["images"].shape == (4, 6, 6, 3)
    (batch,) = data.eval_batches("validation", 2)
    np.testing.assert_array_equal(batch["images"][0], picture(10).astype(np.float32) / 255)
