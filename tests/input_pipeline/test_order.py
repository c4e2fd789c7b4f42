import numpy as np
import pytest

from input_pipeline.order import LONGEST_PATTERN, Order, pattern


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((3.0, 1.0), [0, 1, 0, 0]), ((1.0,), [0]), ((0.5, 0.25, 0.25), [0, 1, 0, 2])],
)
def test_patterns_by_hand(weights, expected):
    assert pattern(weights).tolist() == expected


@pytest.mark.parametrize(
    "weights", [(1, 1), (3, 1), (0.7, 0.2, 0.1), (5, 3, 2, 1, 1, 1), (0.123, 0.877), (99, 1)]
)
def test_any_window_has_each_part_in_proportion(weights):
    """Up to every place the counts are within one of the shares; so a window's are within two."""
    order = Order([1000] * len(weights), weights, seed=0)
    parts, _ = order.parts(np.arange(5000))
    shares = np.array(weights) / sum(weights)
    counts = np.cumsum(parts[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 5001)[:, None] * shares
    assert np.abs(counts - due).max() < 1
    period = len(pattern(weights))
    np.testing.assert_allclose(counts[period - 1], period * shares, atol=1e-9)  # exactly


def test_weights_too_fine_for_the_pattern_are_rounded():
    assert len(pattern([1_234_567, 7_654_321])) <= LONGEST_PATTERN + 1
    counts = np.bincount(pattern([1, 10_000_000]))
    assert counts[0] == 1  # never left out altogether


def test_every_part_is_repeated_and_shuffled_on_its_own():
    sizes = [7, 5]
    order = Order(sizes, [2.0, 1.0], seed=3)
    parts, places = order.parts(np.arange(300))
    for part, size in enumerate(sizes):
        own = places[parts == part]
        np.testing.assert_array_equal(own, np.arange(len(own)))  # none skipped, none twice
        rows = order.rows(part, own[: size * (len(own) // size)]).reshape(-1, size)
        np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(size), (len(rows), 1)))
        assert len({tuple(epoch) for epoch in rows}) > 10
    # Equal sizes do not mean equal orders.
    twins = Order([50, 50], [1, 1], seed=3)
    assert (twins.rows(0, np.arange(50)) != twins.rows(1, np.arange(50))).any()


def test_a_place_is_found_without_those_before_it():
    order = Order([70, 50], [2.0, 1.0], seed=3)
    far = 10**12 + np.arange(30)
    parts, places = order.parts(far)
    np.testing.assert_array_equal(np.bincount(parts), [20, 10])
    assert abs(places[parts == 0][0] - 2 * 10**12 / 3) <= 1
    assert set(order.rows(0, places[parts == 0])) <= set(range(70))
