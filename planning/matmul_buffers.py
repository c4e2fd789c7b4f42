"""Memory that XLA's CPU backend allocates at run time, outside of its buffer assignment.

Eigen computes the matmuls. For each, it packs blocks of both operands into a buffer
(EvalParallelContext in TensorContractionThreadPool.h; docs/plan.md has the measurements). Two parts
add up:

1. For a batched matmul, as in attention, XLA starts all elements of the batch at once
(dot_thunk.cc), and each has its own buffer.

2. A buffer comes from the heap of the thread that starts the matmul: any thread of the pool. The C
library does not return freed heap memory to the system, so in time each thread's heap holds the
size of the largest buffer.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from planning.hlo import Computation, Instruction, Program

# Eigen cuts the contracted axis into slices of at most DEPTH, and holds SLICES of them at a time.
DEPTH, SLICES = 320, 2
# Eigen uses more than one thread from this estimate of cycles on (TensorCostModel.h), with LANES
# multiply-adds per cycle. Smaller matmuls need no such buffer.
SHARED_CYCLES, LANES = 210_000, 8
# glibc maps larger allocations from the system and returns them at once (M_MMAP_THRESHOLD in
# mallopt(3)). Eigen writes little to such buffers: it reads operands with contiguous rows in place.
LARGEST_ON_HEAP = 2**25


@dataclasses.dataclass(frozen=True)
class Matmul:
    """A matmul that needs packing buffers."""

    elements: int  # of the batch
    buffer: int  # bytes per element


def packing(program: Program, threads: float) -> int:
    """Returns the bytes of buffers per device, for this number of pool threads per device."""
    if not threads:
        return 0
    matmuls = list(_matmuls(program))
    per_thread = max((each.buffer for each in matmuls if each.buffer <= LARGEST_ON_HEAP), default=0)
    batches = [each.elements * each.buffer for each in matmuls if each.elements > 1]
    return int(threads * per_thread) + max(batches, default=0)


def _matmuls(program: Program) -> Iterator[Matmul]:
    """Yields the matmuls that Eigen shares among threads."""
    fused = {
        name
        for computation in program.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "fusion"
        for name in instruction.called
    }  # computations inside fusions, whose matmuls Eigen does not compute
    for name, computation in program.computations.items():
        for instruction in computation.instructions.values():
            if instruction.opcode == "dot" and name not in fused:
                yield from _matmul(computation, instruction)


def _matmul(computation: Computation, dot: Instruction) -> Iterator[Matmul]:
    left, right = (operand.array for operand in computation.operands(dot))
    elements = _size(dot, "lhs_batch_dims", left.shape)
    summed = _size(dot, "lhs_contracting_dims", left.shape)
    rows, columns = (array.size // (elements * summed) for array in (left, right))
    slices = math.ceil(summed / DEPTH)
    depth = math.ceil(summed / slices)
    if rows * columns * depth / LANES >= SHARED_CYCLES:
        buffer = min(slices, SLICES) * depth * (rows + columns) * left.bits // 8
        yield Matmul(elements, buffer)


def _size(dot: Instruction, axes: str, shape: tuple[int, ...]) -> int:
    listed = dot.attribute(rf"{axes}=\{{([\d,]*)\}}")
    return math.prod(shape[int(axis)] for axis in re.findall(r"\d+", listed))
