"""FLOPs inside hand-written kernels, of which the compiler knows nothing but their arguments.

Those of TPU's splash attention, forward and backward (model/kernels/fused.py). Blocks that a causal
mask hides whole are not visited and do not count; a window's would not be either, but do.
"""

import math

from planning.hlo import Array, Instruction

# Products of (queries, keys) by head size that each kernel makes of every block it visits: scores
# and outputs; then again scores, with the gradients of values, probabilities and keys; or again
# scores, with the gradients of probabilities and queries.
PRODUCTS = {"fwd": 2, "dkv": 4, "dq": 3}


def kernel_flops(instruction: Instruction, operands: list[Array]) -> int | None:
    """None for a kernel that is not known."""
    name = instruction.attribute(r"/(splash_m[hq]a_\w+)/pallas_call")
    kernel = next((kernel for kernel in PRODUCTS if f"_{kernel}_" in name), None)
    if kernel is None:
        return None
    # In front of them are numbers of blocks. A single row has no axis of rows.
    heads_bhtk, keys_bgsk = [array for array in operands if array.dtype in ("bf16", "f32")][:2]
    *batch, queries, size = heads_bhtk.shape
    keys, each = keys_bgsk.shape[-2], 2 * PRODUCTS[kernel] * size
    suffix = "" if kernel == "fwd" else f"_{kernel}"
    return math.prod(batch) * each * _visited(instruction, queries, keys, suffix)


def _visited(instruction: Instruction, queries: int, keys: int, suffix: str) -> int:
    """Pairs of a query and a key in blocks that are not hidden whole."""
    path = instruction.attribute(r'op_name="([^"]*)"')
    if "/decoder/" not in path or "/self_attention/" not in path:
        return queries * keys
    rows, columns = (
        int(instruction.attribute(rf'"block_{side}{suffix}\\*": (\d+)')) for side in ("q", "kv")
    )
    blocks = sum(-(-(first + rows) // columns) for first in range(0, queries, rows))
    return blocks * rows * columns
