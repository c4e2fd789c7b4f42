"""Packing: which examples share a row, planned from their lengths before the first batch.

Best fit in the order of the source: an example joins the open row that it fills best. At most
OPEN_ROWS rows are open; the fullest is closed to open another. So planning is linear in the number
of examples, and rows are still well over 90% full.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Raise this when the same sizes give another plan than before.
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
    """Packs examples into rows.

    sizes: (examples, sequences), the columns that each example needs. capacities: (sequences,), the
    columns of a row. A language model has one sequence, an encoder-decoder has two.
    """
    sizes = np.asarray(sizes, np.int64)
    capacities = np.asarray(capacities, np.int64)
    row_of = np.empty(len(sizes), np.int64)
    free = np.zeros((OPEN_ROWS, len(capacities)), np.int64)  # free columns of the open rows
    rows = np.full(OPEN_ROWS, -1)  # their numbers
    count = 0
    for example, size in enumerate(sizes):
        left = free - size
        # Free columns that would remain, over all sequences; rows without enough room come last.
        over = np.where((left >= 0).all(axis=1), left.sum(axis=1), np.iinfo(np.int64).max)
        slot = int(over.argmin())
        if (left[slot] < 0).any():
            slot = int(free.sum(axis=1).argmin())  # close the fullest row
            free[slot], rows[slot] = capacities, count
            count += 1
        free[slot] -= size
        row_of[example] = rows[slot]
    return Plan(
        np.argsort(row_of, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=count))]),
    )
