"""Memory that XLA's CPU backend allocates at run time, outside of its buffer assignment.

Eigen computes the matmuls. For each, it packs blocks of both operands into a buffer
(EvalParallelContext in TensorContractionThreadPool.h; docs/plan.md has the measurements). Two parts
add up:

For a batched matmul, as in attention, XLA starts all elements of the batch at once (dot_thunk.cc),
and each has its own buffer.

A buffer comes from the heap of the thread that starts the matmul, which may be any of the pool. The
C library does not return freed heap memory to the system, so in time each thread's heap holds the
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
KEPT = 2**25


@dataclasses.dataclass(frozen=True)
class Product:
    """A matmul that needs packing buffers."""

    elements: int  # of the batch
    buffer: int  # bytes per element


def packing(program: Program, threads: float) -> int:
    """Returns the bytes for each device; `threads` is the number of pool threads per device."""
    if not threads:
        return 0
    products = list(_products(program))
    per_thread = max((each.buffer for each in products if each.buffer <= KEPT), default=0)
    batches = [each.elements * each.buffer for each in products if each.elements > 1]
    return int(threads * per_thread) + max(batches, default=0)


def _products(program: Program) -> Iterator[Product]:
    """Yields the matmuls that Eigen shares among threads."""
    fused = {
        name
        for computation in program.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "fusion"
        for name in instruction.called
    }  # Eigen does not compute their matmuls
    for name, computation in program.computations.items():
        for instruction in computation.instructions.values():
            if instruction.opcode == "dot" and name not in fused:
                yield from _product(computation, instruction)


def _product(computation: Computation, dot: Instruction) -> Iterator[Product]:
    left, right = (operand.array for operand in computation.operands(dot))
    elements = _size(dot, "lhs_batch_dims", left.shape)
    summed = _size(dot, "lhs_contracting_dims", left.shape)
    rows, columns = (array.size // (elements * summed) for array in (left, right))
    slices = math.ceil(summed / DEPTH)
    depth = math.ceil(summed / slices)
    if rows * columns * depth / LANES >= SHARED_CYCLES:
        buffer = min(slices, SLICES) * depth * (rows + columns) * left.bits // 8
        yield Product(elements, buffer)


def _size(dot: Instruction, axes: str, shape: tuple[int, ...]) -> int:
    listed = dot.attribute(rf"{axes}=\{{([\d,]*)\}}")
    return math.prod(shape[int(axis)] for axis in re.findall(r"\d+", listed))
