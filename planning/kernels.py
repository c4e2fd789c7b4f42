"""FLOPs of hand-written kernels, which the compiler does not count.

Covers the TPU's splash attention, forward and backward (model/attention/fused.py). Blocks that a
causal mask excludes entirely are not visited and do not count. Blocks outside a window are not
visited either, but count.
"""

import math

from planning.hlo import Array, Instruction

# Matmuls of size (queries, keys, head size) per visited block. fwd: scores, outputs. dkv: scores,
# and the gradients of values, probabilities and keys. dq: scores, and the gradients of
# probabilities and queries.
MATMULS = {"fwd": 2, "dkv": 4, "dq": 3}


def kernel_flops(instruction: Instruction, operands: list[Array]) -> int | None:
    """Returns the FLOPs of a kernel call, or None for an unknown kernel."""
    name = instruction.attribute(r"/(splash_m[hq]a_\w+)/pallas_call")
    kernel = next((kernel for kernel in MATMULS if f"_{kernel}_" in name), None)
    if kernel is None:
        return None
    # Operands before queries and keys are block indices. A single row has no batch axis.
    q_bhtk, k_bgsk = [array for array in operands if array.dtype in ("bf16", "f32")][:2]
    *batch, queries, size = q_bhtk.shape
    keys, each = k_bgsk.shape[-2], 2 * MATMULS[kernel] * size
    suffix = "" if kernel == "fwd" else f"_{kernel}"
    return math.prod(batch) * each * _visited(instruction, queries, keys, suffix)


def _visited(instruction: Instruction, queries: int, keys: int, suffix: str) -> int:
    """Counts the query-key pairs in visited blocks."""
    path = instruction.attribute(r'op_name="([^"]*)"')
    if "/decoder/" not in path or "/self_attention/" not in path:
        return queries * keys
    rows, columns = (
        int(instruction.attribute(rf'"block_{name}{suffix}\\*": (\d+)')) for name in ("q", "kv")
    )
    blocks = sum(-(-(first + rows) // columns) for first in range(0, queries, rows))
    return blocks * rows * columns
