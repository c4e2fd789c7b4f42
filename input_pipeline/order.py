"""The order of training rows, computed batch by batch and never stored.

Each of the three orders says which rows of which parts are in batch n. A part is one source of a
mixture, or one length bucket.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from input_pipeline.shuffle import shuffled

LONGEST_PATTERN = 10_000  # a longer pattern is shortened: its weights are rounded


class BatchRows(NamedTuple):
    """The rows of a batch: the part of each, and its index in that part."""

    parts: np.ndarray
    rows: np.ndarray
    real: np.ndarray  # False for a row that only pads the batch


class BySize:
    """Shuffles the rows of all parts together; an epoch has each row once."""

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int):
        self._ends, self._batch_size, self._seed = np.cumsum(sizes), batch_size, seed

    def batch(self, n: int, inside: np.ndarray) -> BatchRows:
        """The rows of batch n at the positions `inside` the batch."""
        numbers = shuffled(n * self._batch_size + inside, int(self._ends[-1]), self._seed)
        return BatchRows(*_part_of(numbers, self._ends), np.ones(len(inside), bool))


class ByWeight:
    """Interleaves parts in a repeating pattern; each part is shuffled and repeated by itself.

    After any number of rows, each part's count is within one row of its share.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], batch_size: int, seed: int):
        self._sizes, self._batch_size, self._seed = sizes, batch_size, seed
        self._pattern = pattern(weights)
        is_part = self._pattern == np.arange(len(sizes))[:, None]
        self._counts = is_part.sum(axis=1)
        # How many rows of the same part precede each position of the pattern.
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
    """Batches of one part each. An epoch has all rows of all parts once.

    The batches of each part are spread evenly over the epoch. The last batch of a part is filled
    up with rows that are not `real`.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int):
        self._sizes, self._batch_size, self._seed = sizes, batch_size, seed
        counts = [-(-size // batch_size) for size in sizes]
        # Batch j of the c batches of a part is due at (j + 1/2) / c of the epoch.
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
    """Row numbers over all parts -> the part of each, and its number in the part."""
    parts = np.searchsorted(ends, numbers, side="right")
    return parts, numbers - np.concatenate([[0], ends])[parts]


def pattern(weights: Sequence[float]) -> np.ndarray:
    """The parts in an order that gives each its share as evenly as whole rows allow.

    Row j of a part with share s may come at position (j - 1) / s or later and must come before
    position j / s. Scheduling the earliest deadline first meets all deadlines, which keeps every
    count within one of its share.
    """
    counts = _integer_weights(weights)
    total = sum(counts)
    done, order = [0] * len(counts), []
    for place in range(total):
        may_come = [k for k, n in enumerate(counts) if n and done[k] * total <= place * n]
        soonest = min(may_come, key=lambda k: -(-(done[k] + 1) * total // counts[k]))
        done[soonest] += 1
        order.append(soonest)
    return np.array(order)


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """The weights as small integers in the same proportion, exactly or nearly."""
    exact = [Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))
    counts = [int(weight * common) for weight in exact]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    total = sum(counts)
    if total <= LONGEST_PATTERN:
        return counts
    return [max(1, round(count * LONGEST_PATTERN / total)) for count in counts]
