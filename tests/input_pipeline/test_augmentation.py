"""One example of each change written out by hand, then the statistics, then whole batches."""

import numpy as np
import pytest

from input_pipeline import augmentation, pipeline
from input_pipeline.sources.base import Splits
from tests.input_pipeline.scripted import Scripted
from tests.input_pipeline.stand_in import stand_in
from tests.tiny import data_config, masking


def rng(seed=0):
    return np.random.default_rng(seed)


def grey(*rows):
    return np.array(rows, np.float32)[..., None]


def random_image(size=40, channels=3, seed=9):
    return rng(seed).random((size, size, channels), np.float32)


def test_bytes_become_floats_from_0_to_1_and_floats_stay():
    np.testing.assert_array_equal(
        augmentation.unit_range(np.array([0, 51, 255], np.uint8)), np.float32([0, 0.2, 1])
    )
    image = random_image()
    assert augmentation.unit_range(image) is image


def test_padded_crop_by_hand():
    image = grey([1, 2], [3, 4])
    for offsets, expected in {
        (1, 1): ([1, 2], [3, 4]),
        (0, 0): ([0, 0], [0, 1]),
        (2, 1): ([3, 4], [0, 0]),
        (1, 2): ([2, 0], [4, 0]),
    }.items():
        crop = augmentation.padded_crop(image, 1, Scripted(offsets))
        np.testing.assert_array_equal(crop, grey(*expected))


def test_resized_crop_by_hand():
    # Half of the area, square root of 2 x 2 pixels of a 2 x 4 image, two columns from the left.
    image = grey([9, 9, 0, 4], [9, 9, 8, 4])
    window = Scripted(0.5, 0.0, (0, 2))
    np.testing.assert_array_equal(
        augmentation.resized_crop(image, 0.1, window), grey([0, 1, 3, 4], [8, 7, 5, 4])
    )


@pytest.mark.parametrize(("draw", "expected"), [(0.49, [2, 1]), (0.5, [1, 2])])
def test_flipped_by_hand(draw, expected):
    flipped = augmentation.flipped(grey([1, 2]), Scripted(draw))
    np.testing.assert_array_equal(flipped, grey(expected))


def test_erased_by_hand():
    # 1 of 9 pixels, in the middle row at the right.
    noise = np.full((1, 1, 1), 0.25, np.float32)
    script = Scripted(0.3, 1 / 9, 0.0, (1, 2), noise)
    image = np.ones((3, 3, 1), np.float32)
    np.testing.assert_array_equal(
        augmentation.erased(image, 0.31, script), grey([1, 1, 1], [1, 1, 0.25], [1, 1, 1])
    )
    assert image.all()  # the original is as it was
    np.testing.assert_array_equal(augmentation.erased(image, 0.3, Scripted(0.3)), image)


def test_mixed_by_hand():
    row = {"image": grey([1, 0]), "label": 3}
    other = {"image": grey([0, 0.5]), "label": 1}
    mixed = augmentation.mixed(row, other, 0.2, Scripted(0.75))
    np.testing.assert_array_equal(mixed["image"], grey([0.75, 0.125]))
    assert mixed["label"].tolist() == [3, 1]
    assert mixed["label_weights"].tolist() == [0.75, 0.25]
    assert mixed["image"].dtype == mixed["label_weights"].dtype == np.float32


def test_crops_of_a_padded_image_are_everywhere_equally_often():
    generator, counts = rng(), np.zeros((5, 5), int)
    image = np.arange(1, 82, dtype=np.float32).reshape(9, 9, 1)
    for _ in range(5000):
        # The middle pixel of the window tells which window it is.
        row, column = divmod(int(augmentation.padded_crop(image, 2, generator)[4, 4, 0]) - 1, 9)
        counts[row - 2, column - 2] += 1
    assert counts.min() > 140 and counts.max() < 260  # of 200 on average, over 4 deviations away


def windows(shares, aspect, size, count=4000):
    found = [augmentation._rectangle((size, size, 3), shares, aspect, rng(s)) for s in range(count)]
    edges = [(w[0].start, w[0].stop, w[1].start, w[1].stop) for w in found if w]
    return np.array(edges).T, len(edges) / count


@pytest.mark.parametrize(
    ("shares", "aspect"),
    [((0.08, 1), augmentation.CROP_ASPECT), ((0.02, 0.33), augmentation.ERASED_ASPECT)],
)
def test_rectangles_are_of_every_area_shape_and_place_allowed(shares, aspect):
    size = 1000
    (top, bottom, left, right), found = windows(shares, aspect, size)
    assert found > 0.99
    assert min(top.min(), left.min()) >= 0 and max(bottom.max(), right.max()) <= size
    share = (bottom - top) * (right - left) / size**2
    low, high = shares
    assert low - 0.003 < share.min() < low + 0.01 and high * 0.93 < share.max() < high + 0.003
    log_aspect = np.log((bottom - top) / (right - left)) / abs(np.log(aspect))
    assert -1.05 < log_aspect.min() < -0.95 and 0.95 < log_aspect.max() < 1.05
    assert abs(log_aspect.mean()) < 0.05
    # Where it lies is uniform among the places where it fits.
    for start, length in ((top, bottom - top), (left, right - left)):
        place = start / np.maximum(size - length, 1)
        assert abs(place.mean() - 0.5) < 0.03 and abs(np.mean(place < 0.25) - 0.25) < 0.03


def test_a_crop_that_cannot_fit_returns_the_image():
    # 99% of the area fits only if it is very nearly a square.
    image = random_image(8)
    crops = [augmentation.resized_crop(image, 0.999, rng(seed)) for seed in range(20)]
    assert all(np.array_equal(crop, image) for crop in crops)


def test_enlarging_agrees_with_pillow():
    from PIL import Image

    part = random_image(12, channels=1)[:7, :9]
    ours = augmentation._stretched(augmentation._stretched(part, 20, axis=0), 20, axis=1)
    theirs = Image.fromarray(part[..., 0]).resize((20, 20), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(ours[..., 0], np.asarray(theirs), atol=1e-5)


def test_half_of_the_images_are_flipped():
    image, generator = random_image(3), rng()
    changed = [
        not np.array_equal(augmentation.flipped(image, generator), image) for _ in range(2000)
    ]
    assert 0.45 < np.mean(changed) < 0.55


def test_erasing_happens_as_often_and_to_as_much_as_it_should():
    image = np.full((50, 50, 3), 2, np.float32)  # no noise is that bright
    gone = [(augmentation.erased(image, 0.4, rng(seed)) != 2) for seed in range(1000)]
    shares = np.array([g.mean() for g in gone])
    assert 0.35 < np.mean(shares > 0) < 0.45
    assert 0.015 < shares[shares > 0].min() < 0.04 and 0.3 < shares.max() < 0.345
    changed = np.stack([augmentation.erased(image, 1.0, rng(seed)) for seed in range(20)])
    noise = changed[changed != 2]
    assert noise.min() >= 0 and noise.max() < 1 and abs(noise.mean() - 0.5) < 0.02


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_lambda_is_beta_distributed(alpha):
    row, other = ({"image": grey([value]), "label": 0} for value in (1, 0))
    parts = np.array(
        [augmentation.mixed(row, other, alpha, rng(s))["image"].item() for s in range(4000)]
    )
    assert abs(parts.mean() - 0.5) < 0.03
    assert parts.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.07)


# Whole batches: images whose pixels all say which example they are.
EVERYTHING = [
    dict(crop_padding=2),
    dict(crop_scale=0.3),
    dict(flip=True),
    dict(random_erasing=1.0),
    dict(mixup=0.5),
    dict(crop_padding=1, flip=True, random_erasing=0.5, mixup=1.0),
]


@pytest.fixture
def load(monkeypatch):
    examples = [
        {"image": rng(i).integers(0, 256, (6, 6, 1), np.uint8), "label": i} for i in range(20)
    ]
    splits = Splits(
        "images", examples, {"held_out": examples[:5]}, tuple(map(str, range(20))), {}, ""
    )
    stand_in(monkeypatch, "digits", splits)

    def load(seed=0, **keys):
        data = data_config(source="digits", batch_size=20, **keys)
        return examples, pipeline.load(
            data,
            objective="classify_images",
            masking=masking(),
            seed=seed,
        )

    return load


@pytest.mark.parametrize("keys", EVERYTHING, ids=str)
def test_training_rows_change_and_held_out_ones_never_do(load, keys):
    examples, data = load(**keys)
    plain = np.stack([augmentation.unit_range(example["image"]) for example in examples])
    first, second = data.train_batch(0), data.train_batch(1)
    for batch in (first, second):
        labels = batch["labels"].reshape(20, -1)[:, 0]
        assert sorted(labels) == list(range(20))
        changed = (batch["images"] != plain[labels]).reshape(20, -1).any(axis=1)
        assert changed.sum() > 3
        assert batch["images"].shape == (20, 6, 6, 1) and batch["images"].dtype == np.float32
    order = [np.argsort(b["labels"].reshape(20, -1)[:, 0]) for b in (first, second)]
    assert not np.array_equal(first["images"][order[0]], second["images"][order[1]])
    (eval_batch,) = data.eval_batches("held_out", 5)
    np.testing.assert_array_equal(eval_batch["images"], plain[eval_batch["labels"]])
    assert sorted(eval_batch["labels"].tolist()) == [0, 1, 2, 3, 4]
    assert eval_batch["weights"].tolist() == [1] * 5


@pytest.mark.parametrize("keys", EVERYTHING, ids=str)
def test_the_same_row_of_the_same_run_changes_in_the_same_way(load, keys):
    batches = [load(seed=3, **keys)[1].train_batch(4) for _ in range(2)]
    for name in batches[0]:
        np.testing.assert_array_equal(batches[0][name], batches[1][name])
    other_seed = load(seed=4, **keys)[1].train_batch(4)
    assert not np.array_equal(other_seed["images"], batches[0]["images"])


def test_mixup_blends_two_rows_and_says_which(load):
    examples, data = load(mixup=1.0)
    plain = np.stack([augmentation.unit_range(example["image"]) for example in examples])
    batch = data.train_batch(0)
    assert batch["labels"].shape == batch["weights"].shape == (20, 2)
    assert (batch["labels"][:, 0] != batch["labels"][:, 1]).all()  # never with itself
    np.testing.assert_allclose(batch["weights"].sum(axis=1), 1, rtol=1e-6)
    blended = np.einsum("bk,bkhwc->bhwc", batch["weights"], plain[batch["labels"]])
    np.testing.assert_allclose(batch["images"], blended, atol=1e-6)


def test_normalising_is_for_all_rows_and_comes_after_augmentation(load):
    examples, data = load(image_mean=(0.5,), image_std=(0.25,), crop_padding=5)
    (eval_batch,) = data.eval_batches("held_out", 5)
    plain = np.stack([augmentation.unit_range(example["image"]) for example in examples])
    expected = (plain[eval_batch["labels"]] - 0.5) / 0.25
    np.testing.assert_allclose(eval_batch["images"], expected, atol=1e-6)
    # The black frame is black as any other pixel.
    assert data.train_batch(0)["images"].min() == -2
