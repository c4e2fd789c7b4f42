"""What XLA's CPU backend takes while it runs, and its buffer assignment knows nothing of.

Matrix products are Eigen's, which has a buffer for each, in which it lays blocks of both operands
next to each other before it multiplies them (EvalParallelContext in TensorContractionThreadPool.h;
how it was seen stands in docs/plan.md). Two things add up:

Of a product with a batch, such as attention's, XLA starts all elements at once (dot_thunk.cc), and
each waits for its turn with a buffer of its own.

A buffer comes from the heap of the thread that starts the product. Any thread of the pool may be
that one, each has a heap of its own, and the C library does not give back what was freed there: so
in time each keeps as much as the largest buffer takes.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from planning.hlo import Computation, Instruction, Program

# Eigen cuts what is summed over into slices of at most so many, and has two of them at a time.
DEPTH, SLICES = 320, 2
# It takes a second thread from so many cycles on, by its own estimate (TensorCostModel.h), in which
# eight multiplications and additions are one. What is smaller needs no such buffer.
SHARED_CYCLES, LANES = 210_000, 8
# What is larger than this glibc never takes from a heap, but from the system, and gives it back at
# once (M_MMAP_THRESHOLD in mallopt(3)). Eigen writes little to such buffers: operands whose rows
# are whole in memory are read where they lie.
KEPT = 2**25


@dataclasses.dataclass(frozen=True)
class Product:
    elements: int  # of its batch
    buffer: int  # bytes for one of them


def packing(program: Program, threads: float) -> int:
    """Bytes for each device, of which each has so many threads of the pool."""
    if not threads:
        return 0
    products = list(_products(program))
    per_thread = max((each.buffer for each in products if each.buffer <= KEPT), default=0)
    batches = [each.elements * each.buffer for each in products if each.elements > 1]
    return int(threads * per_thread) + max(batches, default=0)


def _products(program: Program) -> Iterator[Product]:
    """Those that are shared among threads."""
    fused = {
        name
        for computation in program.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "fusion"
        for name in instruction.called
    }  # whose products are not left to Eigen
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
