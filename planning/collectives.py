"""Collectives of a compiled program: what each device sends, and which buffers are in flight."""

import collections
import dataclasses
import math
import re

from planning.hlo import Computation, Instruction, numbers

# Bytes that each device of a group of n sends per byte of its input, with the best algorithm.
SENT = {
    "all-gather": lambda n: n - 1,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind and group size in a program."""

    kind: str
    group: int  # number of devices
    count: float
    bytes: float  # sent by each device


def by_kind(collectives: tuple[Collective, ...]) -> dict[tuple[str, int], Collective]:
    """Returns the sum of collectives for each kind and group size."""
    totals = collections.defaultdict(lambda: (0.0, 0.0))
    for each in collectives:
        if not each.bytes:  # a group of one device
            continue
        count, size = totals[each.kind, each.group]
        totals[each.kind, each.group] = count + each.count, size + each.bytes
    return {key: Collective(*key, *totals[key]) for key in sorted(totals)}


def collective(computation: Computation, instruction: Instruction) -> Collective | None:
    """Returns the collective that an instruction runs or starts, if it does."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in SENT:
        return None
    # TPU programs write a reduce-scatter as a fusion of an all-reduce and a slice.
    if kind == "all-reduce" and computation.name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"
    given = sum(a.bytes for o in computation.operands(instruction) for a in o.arrays)
    group = _group_size(instruction)
    return Collective(kind, group, 1, given * SENT[kind](group))


def _group_size(instruction: Instruction) -> int:
    """Parses replica_groups={{0,1},{2,3}}, =[2,4]<=[8] or =mesh['x'=4,'y'=2] {'y'}."""
    if listed := instruction.attribute(r"replica_groups=\{\{([\d,]+)\}"):
        return len(numbers(listed))
    if shape := instruction.attribute(r"replica_groups=\[([\d,]+)\]<="):
        return numbers(shape)[-1]
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", instruction.attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", named.group(2)))
    return 1  # a permutation lists pairs instead


def in_flight(inside: Computation, fusion: Instruction) -> dict[int, int]:
    """Returns the buffers of an asynchronous collective that a fusion passes on: result -> operand.

    TPU programs spread a collective over fusions, and each takes its buffers and returns them. The
    collective reads and writes them once, whatever the number of fusions.
    """
    if not any(part.opcode in SENT for part in inside.instructions.values()):
        return {}
    aliases = fusion.attribute(r"output_to_operand_aliasing=\{(.*?\))\}")
    found = re.findall(r"\{(\d*)\}: \((\d+), \{\}", aliases)
    return {int(result or 0): int(operand) for result, operand in found}


def starts_collective(inside: Computation) -> bool:
    """Whether a fusion only starts a collective."""
    return 'custom_call_target="AsyncCollectiveStart"' in inside.root.attributes


def ends_collective(inside: Computation) -> bool:
    """Whether a fusion only waits for the end of a collective."""
    return 'custom_call_target="AsyncCollectiveDone"' in inside.root.attributes
