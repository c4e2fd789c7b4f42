"""Roofline time of a step: published peak speeds, with perfect overlap."""

import dataclasses

from planning.collectives import Collective
from planning.counting import Cost
from training.chips import Chip

NODE = 8  # devices with fast links between them; others are reached by the network


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of a step on one device, for each resource that may limit it."""

    compute: float
    memory: float
    interconnect: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory, self.interconnect)

    @property
    def bound_by(self) -> str:
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


def roofline(cost: Cost, peak_flops: float, chip: Chip) -> Roofline:
    """Returns the roofline of a program from its cost and the chip's peak speeds."""
    return Roofline(
        cost.flops / peak_flops,
        cost.bytes / chip.bandwidth,
        sum(each.bytes / _speed(each, chip) for each in cost.collectives),
    )


def _speed(collective: Collective, chip: Chip) -> float:
    """Returns bytes per second. Groups no larger than a node are assumed to be inside one."""
    if chip.network is not None and collective.group > NODE:
        return chip.network
    return chip.links
