"""FLOPs, memory traffic and communication of one device in one run of a compiled program.

The body of a loop counts as often as it runs. The cheapest branch of a conditional counts, if
possible one whose loops have known lengths: kernels have a slower substitute for rare data
(model/attention/flash_attention.py).
"""

import dataclasses
import math
import re
from collections.abc import Iterator

import numpy as np

from planning.collectives import (
    Collective,
    collective,
    ends_collective,
    in_flight,
    starts_collective,
)
from planning.hlo import Array, Computation, Instruction, Program, numbers, trip_count
from planning.kernels import kernel_flops

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
        if found := collective(computation, instruction):
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
            return self._moved_by_fusion(inside, instruction, operands)
        if opcode in READ_IN_PART:
            return 2 * _size(instruction)
        if opcode in WRITTEN_IN_PART:
            return 2 * _size(operands[WRITTEN_IN_PART[opcode]])
        if opcode.endswith("-start"):
            return _started(instruction, operands)
        return sum(map(_size, operands)) + _size(instruction)

    def _moved_by_fusion(
        self, inside: Computation, fusion: Instruction, operands: list[Instruction]
    ) -> int:
        """Returns the bytes read and written by a fusion, without those of collectives in flight.

        A collective's own bytes count where it starts.
        """
        if ends_collective(inside):
            return 0
        passed_on = in_flight(inside, fusion)
        if starts_collective(inside):
            results = enumerate(fusion.arrays)
            new = [array for place, array in results if place not in passed_on]
            given = [array for operand in operands for array in operand.arrays]
            return sum(array.bytes for array in (*given, *new) if array.in_main_memory)
        read = sum(
            self._read(inside, inside.parameters[place])
            for place, operand in enumerate(operands)
            if _in_memory(operand) and place not in passed_on.values()
        )
        is_tuple = inside.root.opcode == "tuple"
        results = inside.operands(inside.root) if is_tuple else [inside.root]
        new = [result for place, result in enumerate(results) if place not in passed_on]
        return read + sum(size for result in new for size in self._written(inside, result))

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
    contracted = numbers(instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}"))
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
        contracted = math.prod(operands[0].shape[axis] for axis in numbers(axes.replace('"', "")))
        return _matmul_cost(2 * instruction.array.size * contracted, *operands[:2])
    if target != "tpu_custom_call":
        return Cost()
    flops = kernel_flops(instruction, operands)
    if flops is None:
        return Cost(unknown=(f"the kernel {instruction.name}",))
    return Cost(flops=flops, kernel_flops=flops)
