"""In which order rows are seen: found place by place, never held in memory.

Several parts are mixed by a pattern that repeats. Up to any place, each part has had its share of
the rows to within one; each part goes through its own rows, shuffled anew in every epoch.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from input_pipeline.shuffle import shuffled

LONGEST_PATTERN = 10_000  # weights are rounded to multiples of its inverse, if need be


class Order:
    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
        self._sizes, self._seed = sizes, seed
        self._pattern = pattern(weights)
        is_part = self._pattern == np.arange(len(sizes))[:, None]
        self._counts = is_part.sum(axis=1)
        # Of the rows of the same part, how many come before this one within the pattern.
        self._rank = (np.cumsum(is_part, axis=1) - 1)[self._pattern, np.arange(is_part.shape[1])]

    def parts(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which part each place belongs to, and how many of that part come before it."""
        repeats, offsets = np.divmod(places, len(self._pattern))
        parts = self._pattern[offsets]
        return parts, repeats * self._counts[parts] + self._rank[offsets]

    def rows(self, part: int, places: np.ndarray) -> np.ndarray:
        """The rows of one part at these of its own places."""
        return shuffled(places, self._sizes[part], self._seed, stream=part)


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
