import math

import pytest

from model.sharding import MESH_AXES
from planning.search import largest, meshes


@pytest.mark.parametrize("start", [1, 3, 16, 100])
@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16, 17, 99])
def test_the_largest_fitting_number_is_found_from_any_start(start, limit):
    asked = []

    def fits(number):
        asked.append(number)
        return number <= limit

    assert largest(fits, start) == limit
    assert len(asked) == len(set(asked)) <= 2 * math.log2(max(start, limit, 1)) + 3


@pytest.mark.parametrize("sequence", [1, 2])
def test_every_mesh_has_all_devices_and_comes_once(sequence):
    found = [tuple(mesh[axis] for axis in MESH_AXES) for mesh in meshes(8, sequence)]
    brute = [
        (data, fsdp, sequence, tensor)
        for data in range(1, 9)
        for fsdp in range(1, 9)
        for tensor in range(1, 9)
        if data * fsdp * sequence * tensor == 8
    ]
    assert sorted(found) == brute
