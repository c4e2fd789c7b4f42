"""Lengths to pad to, chosen from the lengths of the data."""

import numpy as np

MULTIPLE = 8  # lengths are rounded up to it: vector units like that, and little is lost


def choose_buckets(needed: np.ndarray, count: int, longest: int) -> list[int]:
    """At most `count` lengths such that padding each row to the next one fills the fewest columns.

    `needed` is how many columns each row needs. Lengths are multiples of MULTIPLE, or `longest`,
    which no row exceeds. Of equally good choices the one with shorter lengths is taken, so the
    same rows always give the same answer.
    """
    bounds = np.unique(np.append(np.arange(MULTIPLE, longest, MULTIPLE), longest))
    rows = np.bincount(np.searchsorted(bounds, needed), minlength=len(bounds))
    # Only a length up to which some row reaches, and none of the shorter ones, can be of use.
    bounds, rows = bounds[rows > 0], rows[rows > 0]
    up_to = np.concatenate([[0], np.cumsum(rows)])
    # cells[j]: the fewest columns in all of the rows below place j, with the buckets so far.
    cells = np.full(len(bounds) + 1, np.inf)
    cells[0] = 0
    previous = []
    for _ in range(min(count, len(bounds))):
        # A new bucket takes the rows from place i to place j, of length bounds[j - 1].
        added = (up_to[1:, None] - up_to[None, :-1]) * bounds[:, None]
        total = np.where(np.tri(len(bounds), dtype=bool), cells[None, :-1] + added, np.inf)
        previous.append(total.argmin(axis=1))
        cells = np.concatenate([[np.inf], total.min(axis=1)])
    chosen, place = [], len(bounds)
    for starts in reversed(previous):
        chosen.append(int(bounds[place - 1]))
        place = int(starts[place - 1])
    return chosen[::-1]
