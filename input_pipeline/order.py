"""In which order rows are seen: found batch by batch, never held in memory.

There are three orders. Each says which rows of which parts batch n holds; a part is one of the
sources that are mixed, or one of the buckets that examples are sorted into by length.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from input_pipeline.shuffle import shuffled

LONGEST_PATTERN = 10_000  # weights are rounded to multiples of its inverse, if need be


class BatchRows(NamedTuple):
    """Rows of a batch, each by the number of its part and by its number there."""

    parts: np.ndarray
    rows: np.ndarray
    real: np.ndarray  # False where a row only fills up a batch, and must not count


class BySize:
    """All rows of all parts in one shuffle: an epoch has each of them once."""

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int):
        self._ends, self._batch_size, self._seed = np.cumsum(sizes), batch_size, seed

    def batch(self, n: int, inside: np.ndarray) -> BatchRows:
        """The rows of batch n at the places `inside` of it."""
        numbers = shuffled(n * self._batch_size + inside, int(self._ends[-1]), self._seed)
        return BatchRows(*_part_of(numbers, self._ends), np.ones(len(inside), bool))


class ByWeight:
    """Parts by turns, in a pattern that repeats; each part shuffled and repeated on its own.

    Up to any place, each part has had its share of the rows to within one.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], batch_size: int, seed: int):
        self._sizes, self._batch_size, self._seed = sizes, batch_size, seed
        self._pattern = pattern(weights)
        is_part = self._pattern == np.arange(len(sizes))[:, None]
        self._counts = is_part.sum(axis=1)
        # Of the rows of the same part, how many come before this one within the pattern.
        self._rank = (np.cumsum(is_part, axis=1) - 1)[self._pattern, np.arange(is_part.shape[1])]

    def batch(self, n: int, inside: np.ndarray) -> BatchRows:
        repeats, offsets = np.divmod(n * self._batch_size + inside, len(self._pattern))
        parts = self._pattern[offsets]
        places = repeats * self._counts[parts] + self._rank[offsets]
        rows = np.empty_like(places)
        for part in np.unique(parts):
            here = parts == part
            rows[here] = shuffled(places[here], self._sizes[part], self._seed, stream=part + 1)
        return BatchRows(parts, rows, np.ones(len(inside), bool))


class InBuckets:
    """A batch has rows of one part alone. An epoch has all rows of all parts once.

    The batches of each part are spread evenly over the epoch; the last one of a part is filled up
    with rows that do not count.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int):
        self._sizes, self._batch_size, self._seed = sizes, batch_size, seed
        counts = [-(-size // batch_size) for size in sizes]
        # Batch j of the c of a part belongs at (j + 1/2) / c of the epoch.
        due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        order = np.argsort(due, kind="stable")
        self._parts = np.repeat(np.arange(len(sizes)), counts)[order]
        self._numbers = np.concatenate([np.arange(count) for count in counts])[order]

    def batch(self, n: int, inside: np.ndarray) -> BatchRows:
        epoch, place = divmod(n, len(self._parts))
        part, number = int(self._parts[place]), int(self._numbers[place])
        size = self._sizes[part]
        places = number * self._batch_size + inside
        real = places < size
        places = np.where(real, places, 0) + epoch * size
        rows = shuffled(places, size, self._seed, stream=part + 1)
        return BatchRows(np.full(len(inside), part), rows, real)


Order = BySize | ByWeight | InBuckets


def _part_of(numbers: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parts that numbers counted through all parts fall into, and the numbers there."""
    parts = np.searchsorted(ends, numbers, side="right")
    return parts, numbers - np.concatenate([[0], ends])[parts]


def pattern(weights: Sequence[float]) -> np.ndarray:
    """Parts in an order that gives each its share as evenly as whole rows allow.

    Whichever part must come soonest comes next: the j-th row of a part of share s may come from
    place (j - 1) / s on and has to come before place j / s. Earliest deadline first meets them
    all, which keeps every count within one of its share.
    """
    counts = _whole(weights)
    total = sum(counts)
    done, order = [0] * len(counts), []
    for place in range(total):
        may_come = [k for k, n in enumerate(counts) if n and done[k] * total <= place * n]
        soonest = min(may_come, key=lambda k: -(-(done[k] + 1) * total // counts[k]))
        done[soonest] += 1
        order.append(soonest)
    return np.array(order)


def _whole(weights: Sequence[float]) -> list[int]:
    """The weights as the smallest whole numbers in the same proportion, or nearly."""
    exact = [Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    counts = [int(weight * common) for weight in exact]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    total = sum(counts)
    if total <= LONGEST_PATTERN:
        return counts
    return [max(1, round(count * LONGEST_PATTERN / total)) for count in counts]
