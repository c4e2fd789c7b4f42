"""FLOPs, memory traffic and communication of one device in one run of a compiled program.

The body of a loop counts as often as it runs. The cheapest branch of a conditional counts, if
possible one whose loops have known lengths: kernels have a slower substitute for rare data
(model/attention/flash_attention.py).
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

import numpy as np

from planning.hlo import Array, Computation, Instruction, Program, trip_count
from planning.kernels import kernel_flops

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
# Instructions that move no memory themselves.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "while", "conditional", "call", "opt-barrier", "add-dependency", "iota",
}  # fmt: skip
CUBLAS = ("__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul", "__onednn$matmul_reorder")
VIEWS = ("bitcast", "copy", "convert", "reshape", "transpose")  # inside a fusion
READ_IN_PART = ("dynamic-slice", "slice", "gather")
WRITTEN_IN_PART = {"dynamic-update-slice": 1, "scatter": 2}  # the operand with the update


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind and group size in a program."""

    kind: str
    group: int  # number of devices
    count: float
    bytes: float  # sent by each device


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of running a program, or a part of it, once on one device."""

    flops: float = 0  # of matmuls, like the model's own count (training/flops.py)
    kernel_flops: float = 0  # the part in hand-written kernels
    narrow_flops: float = 0  # the part with two 8-bit operands
    bytes: float = 0  # read from and written to main memory
    collectives: tuple[Collective, ...] = ()
    # What is not counted in full: loops of unknown length (counted once), unknown kernels.
    unknown: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.kernel_flops + other.kernel_flops,
            self.narrow_flops + other.narrow_flops,
            self.bytes + other.bytes,
            self.collectives + other.collectives,
            self.unknown + other.unknown,
        )

    def times(self, count: int) -> "Cost":
        """Returns the cost of `count` runs."""
        collectives = tuple(
            dataclasses.replace(each, count=each.count * count, bytes=each.bytes * count)
            for each in self.collectives
        )
        return Cost(
            self.flops * count,
            self.kernel_flops * count,
            self.narrow_flops * count,
            self.bytes * count,
            collectives,
            self.unknown,
        )


def cost(program: Program) -> Cost:
    """Returns the cost of running a program once on one device."""
    return _Counter(program).of(program.computations[program.entry])


def by_kind(collectives: tuple[Collective, ...]) -> dict[tuple[str, int], Collective]:
    """Returns the sum of collectives for each kind and group size."""
    totals = collections.defaultdict(lambda: (0.0, 0.0))
    for each in collectives:
        if not each.bytes:  # a group of one device
            continue
        count, size = totals[each.kind, each.group]
        totals[each.kind, each.group] = count + each.count, size + each.bytes
    return {key: Collective(*key, *totals[key]) for key in sorted(totals)}


class _Counter:
    def __init__(self, program: Program):
        self._program = program
        self._found: dict[str, Cost] = {}

    def of(self, computation: Computation) -> Cost:
        """Returns the cost of running a computation once. Its results are in memory."""
        if computation.name not in self._found:
            # TPU programs spread a collective over several fusions, to overlap it with other
            # work. Each of them contains it, with the same channel.
            channels: dict[str, Collective] = {}
            total = Cost()
            for instruction in computation.instructions.values():
                total += self._instruction(computation, instruction, channels)
            total += Cost(collectives=tuple(channels.values()))
            self._found[computation.name] = total
        return self._found[computation.name]

    def _instruction(
        self, computation: Computation, instruction: Instruction, channels: dict[str, Collective]
    ) -> Cost:
        opcode, called = instruction.opcode, self._program.called(instruction)
        if opcode == "while":
            passes = trip_count(self._program, computation, instruction)
            body = self.of(self._program.computations[instruction.attribute(r"body=%?([\w.\-]+)")])
            if passes is None:
                return body + Cost(unknown=(f"the passes of {instruction.name}",))
            return body.times(passes)
        if opcode == "conditional":
            return min(map(self.of, called), key=_expense)
        if opcode == "call":
            return self.of(called[0])
        moved = Cost(bytes=self._bytes(computation, instruction))
        return moved + self._arithmetic(computation, instruction, channels)

    def _arithmetic(
        self, computation: Computation, instruction: Instruction, channels: dict[str, Collective]
    ) -> Cost:
        """Returns FLOPs and collectives, without memory: parts of a fusion move none."""
        if found := _collective(computation, instruction):
            key = instruction.attribute(r"channel_id=(\d+)") or instruction.name
            channels.setdefault(key, found)
            return Cost()
        operands = [operand.arrays for operand in computation.operands(instruction)]
        match instruction.opcode:
            case "dot":
                left, right = operands[0][0], operands[1][0]
                return _matmul_cost(_dot_flops(instruction, left), left, right)
            case "convolution":
                left, right = operands[0][0], operands[1][0]
                return _matmul_cost(_convolution_flops(instruction, left, right), left, right)
            case "custom-call":
                return _custom_call(instruction, [array for o in operands for array in o])
            case "fusion" | "async-start" | "call-start":
                total = Cost()
                for inside in self._program.called(instruction):
                    for part in inside.instructions.values():
                        total += self._arithmetic(inside, part, channels)
                return total
        return Cost()

    def _bytes(self, computation: Computation, instruction: Instruction) -> int:
        """Returns the bytes read from and written to main memory."""
        opcode = instruction.opcode
        if opcode in FREE or opcode.endswith("-done") or "AllocateBuffer" in instruction.attributes:
            return 0
        operands = computation.operands(instruction)
        if opcode == "fusion":
            (inside,) = self._program.called(instruction)
            if _ends_collective(inside):
                return 0  # counted where it starts
            in_flight = _in_flight(inside, instruction)
            given = zip(inside.parameters, operands, strict=True)
            read = sum(
                self._read(inside, parameter)
                for place, (parameter, o) in enumerate(given)
                if _in_memory(o) and (place not in in_flight.values() or _starts_collective(inside))
            )
            results = [inside.root]
            if inside.root.opcode == "tuple":
                results = inside.operands(inside.root)
            if _starts_collective(
                inside
            ):  # the root is the collective: its results are the fusion's
                return read + sum(
                    array.bytes
                    for place, array in enumerate(instruction.arrays)
                    if array.in_main_memory and place not in in_flight
                )
            return read + sum(
                written
                for place, result in enumerate(results)
                if place not in in_flight
                for written in self._written(inside, result)
            )
        if opcode in READ_IN_PART:
            return 2 * _size(instruction)
        if opcode in WRITTEN_IN_PART:
            return 2 * _size(operands[WRITTEN_IN_PART[opcode]])
        if opcode.endswith("-start"):
            return _started(instruction, operands)
        return sum(map(_size, operands)) + _size(instruction)

    def _read(self, inside: Computation, parameter: Instruction) -> int:
        """Returns the bytes that a fusion reads of a parameter: perhaps one of L layers only."""
        total = 0
        for user in self._users(inside, parameter):
            behind = [self._behind_views(inside, name) for name in user.operands]
            places = [place for place, operand in enumerate(behind) if operand is parameter]
            if user.opcode in READ_IN_PART and places == [0]:
                total += user.array.bytes
            elif user.opcode == "fusion":  # TPU fusions can be nested
                (deeper,) = self._program.called(user)
                total += sum(self._read(deeper, deeper.parameters[place]) for place in places)
            elif user.opcode not in WRITTEN_IN_PART or places != [0]:
                return _bytes(parameter)
        return min(total, _bytes(parameter))

    def _written(self, inside: Computation, result: Instruction) -> Iterator[int]:
        """Yields the bytes of each result of a fusion; updates write only the new part."""
        behind = self._behind_views(inside, result.name)
        if behind.opcode == "tuple":
            for operand in inside.operands(behind):
                yield from self._written(inside, operand)
        elif not _in_memory(result):
            yield 0
        elif behind.opcode in WRITTEN_IN_PART:
            yield inside.operands(behind)[WRITTEN_IN_PART[behind.opcode]].array.bytes
        elif behind.opcode == "fusion":
            (deeper,) = self._program.called(behind)
            yield min(sum(self._written(deeper, deeper.root)), _size(result))
        elif behind.opcode != "parameter":
            yield _size(result)

    def _users(self, inside: Computation, instruction: Instruction) -> Iterator[Instruction]:
        for user in inside.users[instruction.name]:
            if self._is_view(user):
                yield from self._users(inside, user)
            else:
                yield user

    def _behind_views(self, inside: Computation, name: str) -> Instruction:
        instruction = inside.instructions[name]
        while self._is_view(instruction):
            instruction = inside.instructions[instruction.operands[0]]
        return instruction

    def _is_view(self, instruction: Instruction) -> bool:
        """Whether an instruction only copies or reinterprets its operand."""
        if instruction.opcode != "fusion" or len(instruction.operands) != 1:
            return instruction.opcode in VIEWS
        (inside,) = self._program.called(instruction)
        return all(part.opcode in (*VIEWS, "parameter") for part in inside.instructions.values())


def _expense(branch: Cost) -> tuple:
    return len(branch.unknown), branch.flops, branch.bytes


def _started(instruction: Instruction, operands: list[Instruction]) -> int:
    """Returns the bytes of an asynchronous operation; its results include its operands."""
    if instruction.opcode == "slice-start":
        part = instruction.arrays[len(operands)]
        return part.bytes * (1 + part.in_main_memory)
    given = [array for operand in operands for array in operand.arrays]
    results = [array for array in instruction.arrays if array not in given and array.size > 1]
    return sum(array.bytes for array in (*given, *results) if array.in_main_memory)


def _in_flight(inside: Computation, fusion: Instruction) -> dict[int, int]:
    """Returns the buffers of an asynchronous collective that a fusion passes on: result -> operand.

    TPU programs spread a collective over fusions, and each takes its buffers and returns them. The
    collective reads and writes them once, whatever the number of fusions.
    """
    if not any(part.opcode in SENT for part in inside.instructions.values()):
        return {}
    aliases = fusion.attribute(r"output_to_operand_aliasing=\{(.*?\))\}")
    found = re.findall(r"\{(\d*)\}: \((\d+), \{\}", aliases)
    return {int(result or 0): int(operand) for result, operand in found}


def _starts_collective(inside: Computation) -> bool:
    return 'custom_call_target="AsyncCollectiveStart"' in inside.root.attributes


def _ends_collective(inside: Computation) -> bool:
    return 'custom_call_target="AsyncCollectiveDone"' in inside.root.attributes


def _size(instruction: Instruction) -> int:
    return sum(array.bytes for array in instruction.arrays if array.in_main_memory)


def _bytes(instruction: Instruction) -> int:
    """Returns the bytes in any memory: parts of a fusion do not state theirs."""
    return sum(array.bytes for array in instruction.arrays)


def _in_memory(instruction: Instruction) -> bool:
    return any(array.in_main_memory for array in instruction.arrays)


def _matmul_cost(flops: int, left: Array, right: Array) -> Cost:
    is_narrow = left.bits == right.bits == 8
    return Cost(flops, narrow_flops=flops if is_narrow else 0)


def _dot_flops(instruction: Instruction, left: Array) -> int:
    contracted = _numbers(instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}"))
    return 2 * instruction.array.size * math.prod(left.shape[axis] for axis in contracted)


def _convolution_flops(instruction: Instruction, left: Array, right: Array) -> int:
    """Counts a convolution. In TPU programs, matmuls are convolutions; batch axes are spatial.

    Multiplications with the zeros of padding and dilation do not count.
    """
    of_left, of_right, of_out = re.split(
        "_|->", instruction.attribute(r"dim_labels=([\w?]+->[\w?]+)")
    )
    out = instruction.array.shape
    total = 2 * out[of_out.index("b")] * out[of_out.index("f")] * right.shape[of_right.index("i")]
    window = instruction.attribute(r"window=\{([^}]*)\}")
    spatial = [label for label in of_out if label.isdigit()]
    for place, label in enumerate(spatial):
        total *= _multiplications_along(
            left.shape[of_left.index(label)],
            right.shape[of_right.index(label)],
            out[of_out.index(label)],
            stride=_along(window, "stride", place, 1),
            padding=_along(window, "pad", place, 0),
            left_dilation=_along(window, "lhs_dilate", place, 1),
            right_dilation=_along(window, "rhs_dilate", place, 1),
        )
    return total


def _along(window: str, key: str, place: int, default: int) -> int:
    """Returns a window's value for one axis; for padding, the one in front."""
    found = re.search(rf"{key}=([\d_x\-]+)", window)
    return int(found.group(1).split("x")[place].split("_")[0]) if found else default


def _multiplications_along(
    left: int,
    right: int,
    out: int,
    *,
    stride: int,
    padding: int,
    left_dilation: int,
    right_dilation: int,
) -> int:
    """Counts the pairs of output and kernel positions that read an input element."""
    places = np.arange(out) * stride - padding
    total = 0
    for tap in range(right):
        at = places + tap * right_dilation
        inside = (at >= 0) & (at < left * left_dilation) & (at % left_dilation == 0)
        total += int(inside.sum())
    return total


def _custom_call(instruction: Instruction, operands: list[Array]) -> Cost:
    target = instruction.attribute(r'custom_call_target="([^"]*)"')
    if target.startswith(CUBLAS):
        axes = instruction.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
        contracted = math.prod(operands[0].shape[axis] for axis in _numbers(axes.replace('"', "")))
        return _matmul_cost(2 * instruction.array.size * contracted, *operands[:2])
    if target != "tpu_custom_call":
        return Cost()
    flops = kernel_flops(instruction, operands)
    if flops is None:
        return Cost(unknown=(f"the kernel {instruction.name}",))
    return Cost(flops=flops, kernel_flops=flops)


def _collective(computation: Computation, instruction: Instruction) -> Collective | None:
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
        return len(_numbers(listed))
    if shape := instruction.attribute(r"replica_groups=\[([\d,]+)\]<="):
        return _numbers(shape)[-1]
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", instruction.attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", named.group(2)))
    return 1  # a permutation lists pairs instead


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
