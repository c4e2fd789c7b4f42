"""Searches for the largest batch that fits, and lists the meshes of a number of devices."""

import itertools
from collections.abc import Callable, Iterator

from model.sharding import MESH_AXES


def largest(fits: Callable[[int], bool], start: int = 1) -> int:
    """Returns the largest number that `fits`, or 0. `fits` must be monotonic.

    Doubles or halves to find bounds, then bisects.
    """
    if fits(start):
        good, bad = start, 2 * start
        while fits(bad):
            good, bad = bad, 2 * bad
    else:
        good, bad = start // 2, start
        while good and not fits(good):
            good, bad = good // 2, good
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def meshes(devices: int, sequence: int) -> Iterator[dict[str, int]]:
    """Yields the sizes of all meshes of `devices` devices, with the given `sequence` axis."""
    left = devices // sequence
    divisors = [size for size in range(1, left + 1) if left % size == 0]
    for data, fsdp in itertools.product(divisors, divisors):
        if left % (data * fsdp) == 0:
            sizes = (data, fsdp, sequence, left // (data * fsdp))
            yield dict(zip(MESH_AXES, sizes, strict=True))
