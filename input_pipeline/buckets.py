"""Lengths to pad to, chosen from the lengths of the data."""

import numpy as np

MULTIPLE = 8  # lengths are rounded up to a multiple, which suits vector units


def choose_buckets(needed: np.ndarray, count: int, longest: int) -> list[int]:
    """At most `count` bucket lengths that minimize the padded size of all rows.

    needed: (rows,), the columns that each row needs. Lengths are multiples of MULTIPLE, or
    `longest`, which no row exceeds. Ties go to shorter lengths, so the result is deterministic.
    """
    bounds = np.unique(np.append(np.arange(MULTIPLE, longest, MULTIPLE), longest))
    rows = np.bincount(np.searchsorted(bounds, needed), minlength=len(bounds))
    # Only lengths that some row rounds up to are useful.
    bounds, rows = bounds[rows > 0], rows[rows > 0]
    up_to = np.concatenate([[0], np.cumsum(rows)])
    # cells[j]: the smallest padded size of the rows below index j, with the buckets so far.
    cells = np.full(len(bounds) + 1, np.inf)
    cells[0] = 0
    previous = []
    for _ in range(min(count, len(bounds))):
        # A new bucket of length bounds[j - 1] takes the rows from index i to index j.
        added = (up_to[1:, None] - up_to[None, :-1]) * bounds[:, None]
        total = np.where(np.tri(len(bounds), dtype=bool), cells[None, :-1] + added, np.inf)
        previous.append(total.argmin(axis=1))
        cells = np.concatenate([[np.inf], total.min(axis=1)])
    chosen, place = [], len(bounds)
    for starts in reversed(previous):
        chosen.append(int(bounds[place - 1]))
        place = int(starts[place - 1])
    return chosen[::-1]
