import numpy as np
import pytest

from input_pipeline.shuffle import shuffled


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 255, 256, 257, 1797, 5000])
def test_every_epoch_has_every_index_once(size):
    order = shuffled(np.arange(3 * size), size, seed=1).reshape(3, size)
    np.testing.assert_array_equal(np.sort(order), np.tile(np.arange(size), (3, 1)))


def test_an_index_is_found_without_its_neighbours():
    order = shuffled(np.arange(300), 100, seed=3)
    for position in (0, 99, 100, 257):
        assert shuffled(np.array([position]), 100, seed=3) == order[position]


def test_epochs_and_seeds_have_orders_of_their_own():
    first, second = shuffled(np.arange(2000), 1000, seed=0).reshape(2, 1000)
    other_seed = shuffled(np.arange(1000), 1000, seed=1)
    for other in (second, other_seed):
        assert np.sum(first == other) < 10


def test_large_ranges_are_mixed():
    size = 10_196_208
    order = shuffled(np.arange(20_000), size, seed=0)
    assert len(np.unique(order)) == 20_000 and order.max() < size
    # Uniform in value, and neighbours have nothing to do with each other.
    counts, _ = np.histogram(order, bins=10, range=(0, size))
    assert counts.min() > 1800 and counts.max() < 2200
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(order, np.arange(20_000))[0, 1]) < 0.03


def test_small_ranges_are_mixed():
    """Over many epochs each of five examples comes first about equally often."""
    firsts = shuffled(np.arange(0, 5 * 2000, 5), 5, seed=0)
    counts = np.bincount(firsts, minlength=5)
    assert counts.min() > 320 and counts.max() < 480
