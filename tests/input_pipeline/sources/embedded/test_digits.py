import collections

import numpy as np
import pytest

from input_pipeline.sources.embedded import digits


@pytest.fixture(scope="module")
def splits():
    return digits.load()


def test_images_are_small_floats(splits):
    images = np.stack([e["image"] for e in splits.train])
    assert images.shape[1:] == (8, 8, 1)
    assert images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1


def test_no_image_is_in_two_splits(splits):
    eval_images = {e["image"].tobytes() for e in splits.evals["held_out"]}
    assert not eval_images & {e["image"].tobytes() for e in splits.train}


def test_all_digits_are_used_and_a_fifth_of_them_held_out(splits):
    train, eval_set = splits.train, splits.evals["held_out"]
    assert len(train) + len(eval_set) == 1797
    assert 0.17 < len(eval_set) / 1797 < 0.23
    counts = collections.Counter(splits.labels[e["label"]] for e in eval_set)
    assert sorted(counts) == list("0123456789") and min(counts.values()) > 20
