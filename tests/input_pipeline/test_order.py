import numpy as np
import pytest

from input_pipeline.order import LONGEST_PATTERN, BySize, ByWeight, InBuckets, pattern


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((3.0, 1.0), [0, 1, 0, 0]), ((1.0,), [0]), ((0.5, 0.25, 0.25), [0, 1, 0, 2])],
)
def test_patterns_by_hand(weights, expected):
    assert pattern(weights).tolist() == expected


def batches(order, size, count, start=0):
    """Several batches in a row: parts, rows and whether they count."""
    found = [order.batch(n, np.arange(size)) for n in range(start, start + count)]
    return [np.concatenate(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "weights", [(1, 1), (3, 1), (0.7, 0.2, 0.1), (5, 3, 2, 1, 1, 1), (0.123, 0.877), (99, 1)]
)
def test_by_weight_any_window_has_each_part_in_proportion(weights):
    """Up to every place the counts are within one of the shares; so a window's are within two."""
    parts, _, real = batches(ByWeight([1000] * len(weights), weights, 8, seed=0), 8, 625)
    assert real.all()
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


def test_by_weight_every_part_is_repeated_and_shuffled_on_its_own():
    sizes = [7, 5]
    parts, rows, _ = batches(ByWeight(sizes, [2.0, 1.0], 4, seed=3), 4, 75)
    for part, size in enumerate(sizes):
        own = rows[parts == part]
        epochs = own[: size * (len(own) // size)].reshape(-1, size)
        np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(size), (len(epochs), 1)))
        assert len({tuple(epoch) for epoch in epochs}) > 10
    # Equal sizes do not mean equal orders.
    parts, rows, _ = batches(ByWeight([50, 50], [1, 1], 10, seed=3), 10, 10)
    assert (rows[parts == 0] != rows[parts == 1]).any()


@pytest.mark.parametrize("sizes", [[12], [100, 3, 17]])
def test_by_size_an_epoch_has_every_row_of_every_part_once(sizes):
    total = sum(sizes)
    order = BySize(sizes, 4, seed=1)
    parts, rows, real = batches(order, 4, total)  # four epochs
    assert real.all()
    everything = [(part, row) for part, size in enumerate(sizes) for row in range(size)]
    orders = set()
    for epoch in range(4):
        here = slice(epoch * total, (epoch + 1) * total)
        indices = list(zip(parts[here].tolist(), rows[here].tolist(), strict=True))
        assert sorted(indices) == everything
        orders.add(tuple(indices))
    assert len(orders) == 4


@pytest.mark.parametrize("sizes", [[12], [100, 3, 16], [20_001, 2]])
def test_in_buckets_an_epoch_has_every_row_once_and_a_batch_one_part(sizes):
    size, count = 8, sum(-(-n // 8) for n in sizes)
    order = InBuckets(sizes, size, seed=1)
    everything = [(part, row) for part, n in enumerate(sizes) for row in range(n)]
    first_batches = set()
    for epoch in range(2):
        parts, rows, real = batches(order, size, count, start=epoch * count)
        indices = zip(parts[real].tolist(), rows[real].tolist(), strict=True)
        assert sorted(indices) == everything
        by_batch = parts.reshape(-1, size)
        assert (by_batch == by_batch[:, :1]).all()
        first_batches.add(tuple(rows[:size]))
    assert len(first_batches) == 2


@pytest.mark.parametrize(
    "order",
    [
        BySize([70, 50], 30, seed=3),
        ByWeight([70, 50], [2.0, 1.0], 30, seed=3),
        InBuckets([70, 50], 30, seed=3),
    ],
    ids=lambda order: type(order).__name__,
)
def test_a_batch_is_found_without_those_before_it_and_by_shares(order):
    far = 10**12
    full_batch = order.batch(far, np.arange(30))
    assert ((full_batch.rows >= 0) & (full_batch.rows < np.array([70, 50])[full_batch.parts])).all()
    shares = [order.batch(far, np.arange(start, start + 10)) for start in (0, 10, 20)]
    for column, parts in zip(full_batch, zip(*shares, strict=True), strict=True):
        np.testing.assert_array_equal(column, np.concatenate(parts))
