"""Which examples share a row, planned from their lengths before the first batch.

Best fit, in the order of the source: an example joins the row it fills up best. Only so many rows
stay open; the fullest is closed when there are more. Looking at a bounded number of rows keeps
planning linear in the number of examples and still fills rows to well over nine tenths.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# To be raised when the same sizes come to give another plan.
VERSION = 1
OPEN_ROWS = 256


class Plan(NamedTuple):
    """Row r holds the examples order[starts[r]:starts[r + 1]]."""

    order: np.ndarray
    starts: np.ndarray

    def __len__(self):
        return len(self.starts) - 1

    def examples(self, row: int) -> np.ndarray:
        return self.order[self.starts[row] : self.starts[row + 1]]


def plan(sizes: np.ndarray, capacities: Sequence[int]) -> Plan:
    """`sizes` has a line for each example and a column for each of the capacities.

    A row has a capacity on each side: one for a language model, two for encoder and decoder.
    """
    sizes = np.asarray(sizes, np.int64)
    capacities = np.asarray(capacities, np.int64)
    row_of = np.empty(len(sizes), np.int64)
    free = np.zeros((OPEN_ROWS, len(capacities)), np.int64)  # what open rows have left
    rows = np.full(OPEN_ROWS, -1)  # their numbers
    count = 0
    for example, size in enumerate(sizes):
        left = free - size
        # What would be left over on all sides; rows in which it does not fit come last.
        over = np.where((left >= 0).all(axis=1), left.sum(axis=1), np.iinfo(np.int64).max)
        slot = int(over.argmin())
        if (left[slot] < 0).any():
            slot = int(free.sum(axis=1).argmin())  # the fullest is closed
            free[slot], rows[slot] = capacities, count
            count += 1
        free[slot] -= size
        row_of[example] = rows[slot]
    return Plan(
        np.argsort(row_of, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=count))]),
    )
