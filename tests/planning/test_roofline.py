"""Times of a step by hand: the slowest of compute, memory and interconnect decides."""

import pytest

from planning.collectives import Collective
from planning.counting import Cost
from planning.roofline import NODE, roofline
from training.chips import Chip

GPU = Chip(memory=80e9, bandwidth=2e12, links=4e11, network=5e10)
TPU = Chip(memory=16e9, bandwidth=8e11, links=1e11)


def reduce(group: int, size: float) -> Collective:
    return Collective("all-reduce", group, count=1, bytes=size)


@pytest.mark.parametrize(
    ("cost", "chip", "seconds", "bound_by"),
    [
        (Cost(flops=6e12, bytes=1e9), TPU, 0.03, "compute"),
        (Cost(flops=2e12, bytes=16e9), TPU, 0.02, "memory"),
        # Three times of 0.01 s overlap; they are not added.
        (Cost(flops=2e12, bytes=8e9, collectives=(reduce(4, 1e9),)), TPU, 0.01, "compute"),
        # Collectives wait for each other.
        (Cost(collectives=(reduce(4, 1e9), reduce(256, 3e9))), TPU, 0.04, "interconnect"),
        # Inside a node by its links; beyond it by the network, where there is one.
        (Cost(collectives=(reduce(NODE, 8e9),)), GPU, 0.02, "interconnect"),
        (Cost(collectives=(reduce(NODE + 1, 8e9),)), GPU, 0.16, "interconnect"),
        (Cost(collectives=(reduce(NODE, 8e9), reduce(16, 1e9))), GPU, 0.04, "interconnect"),
    ],
)
def test_roofline_seconds_and_bound(cost, chip, seconds, bound_by):
    found = roofline(cost, peak_flops=2e14, chip=chip)
    assert found.seconds == pytest.approx(seconds)
    assert found.bound_by == bound_by
