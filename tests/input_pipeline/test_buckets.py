import itertools

import numpy as np
import pytest

from input_pipeline.buckets import MULTIPLE, choose_buckets


def columns(lengths, needed):
    """How many columns rows have in all, each padded to the shortest length that holds it."""
    return sum(min(length for length in lengths if length >= need) for need in needed)


def test_the_chosen_buckets_pad_least():
    rng = np.random.default_rng(0)
    for _ in range(200):
        longest, count = int(rng.integers(5, 70)), int(rng.integers(1, 5))
        needed = rng.integers(1, longest + 1, size=rng.integers(1, 40))
        chosen = choose_buckets(needed, count, longest)
        assert len(chosen) <= count and chosen == sorted(set(chosen))
        possible = sorted({*range(MULTIPLE, longest, MULTIPLE), longest})
        assert set(chosen) <= set(possible)
        others = (
            other
            for number in range(1, count + 1)
            for other in itertools.combinations(possible, number)
            if other[-1] >= needed.max()
        )
        assert columns(chosen, needed) == min(columns(other, needed) for other in others)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_of_one_length_have_one_bucket(count):
    assert choose_buckets(np.full(9, 20), count, 64) == [24]


def test_a_choice_does_not_depend_on_the_order_of_the_rows():
    needed = np.random.default_rng(1).integers(1, 65, size=500)
    assert choose_buckets(needed, 3, 64) == choose_buckets(np.sort(needed)[::-1], 3, 64)


def test_short_texts_are_not_padded_to_the_longest():
    # Most questions have some ten words; a few have many.
    needed = np.repeat([8, 12, 16, 24, 60], [100, 500, 300, 90, 10])
    assert choose_buckets(needed, 3, 64) == [16, 24, 64]
