"""The memory layout of parameters for decoding, which spends most of its time reading them.

Training stores the parameters of all layers in one stacked array. Decoding would slice that array
again for every token, so here each layer has its own arrays. On a CPU the axis order of a matrix
matters as well: some libraries multiply a few rows by a large matrix faster if its input axis comes
first, others if its output axis does. Kernels have their inputs first. The token table, when it is
also the output layer, has its outputs first. `lay_out` transposes the matrices that need it, and
model calls inside `reading` use the transposed matrices. The model code does not know about this.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

import flax.linen as nn
import flax.struct
import jax
from jax import Array

from model.config import TransformerConfig
from model.layers import Dense, Embedding
from model.mixed_precision import matmul
from model.sharding import platform
from model.stack import by_layer
from training.compilation import compiler_options

Order = Literal["as_trained", "inputs_first", "outputs_first"]
FEW_ROWS = 128  # measured on the shapes of benchmarks/decode.py


@flax.struct.dataclass
class Transposed:
    """A parameter stored as a transposed matrix, with its shape in the model."""

    matrix: Array
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False)

    def restored(self) -> Array:
        """The parameter in the model's shape; a compiled matmul reads the matrix without a copy."""
        return self.matrix.T.reshape(self.shape)


def lay_out(params: dict, config: TransformerConfig, order: Order) -> dict:
    """Lays out the parameters of a model with a decoder; `restore` is the inverse."""
    backbone = dict(params["backbone"])
    decoder = backbone["decoder"]
    blocks = by_layer(decoder["blocks"], config.decoder_layers)
    vocabulary = {name: module for name, module in params.items() if name == "vocabulary"}
    if order == "outputs_first":
        blocks, vocabulary = _transposed(blocks), _transposed(vocabulary)
    if order == "inputs_first" and config.tie_output:
        table = backbone["token_embedding"]["embedding"]
        backbone["token_embedding"] = {"embedding": Transposed(table.T, table.shape)}
    backbone["decoder"] = {**decoder, "blocks": blocks}
    return {**params, **vocabulary, "backbone": backbone}


def restore(laid_out: dict) -> dict:
    """The parameters as the model's `decode` takes them with a cache. Call it inside the loop."""
    is_transposed = lambda leaf: isinstance(leaf, Transposed)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.restored() if is_transposed(leaf) else leaf,
        laid_out,
        is_leaf=is_transposed,
    )


def _transposed(module: dict, name: str = "") -> dict:
    """The module with its kernel transposed, and so all modules inside it but experts."""
    if name == "experts":  # they do not call `multiply`
        return module
    if "kernel" not in module:
        return {
            key: _transposed(value, key) if isinstance(value, dict) else value
            for key, value in module.items()
        }
    kernel = module["kernel"]
    # Heads and head size are input axes in attention's output projection, elsewhere output axes.
    matrix = (-1, kernel.shape[-1]) if name == "out" else (kernel.shape[0], -1)
    return module | {"kernel": Transposed(kernel.reshape(matrix).T, kernel.shape)}


@contextlib.contextmanager
def reading(order: Order) -> Iterator[None]:
    """Model calls inside this context read matrices in the order that `lay_out` gave them."""

    def multiply(next_function, args, kwargs, context):
        is_matmul = context.method_name == "multiply"
        is_float = getattr(context.module, "matmul", "float") == "float"
        if is_matmul and is_float and isinstance(context.module, Dense | Embedding):
            return matmul_transposed(*args)
        return next_function(*args, **kwargs)

    with nn.intercept_methods(multiply) if order == "outputs_first" else contextlib.nullcontext():
        yield


def matmul_transposed(x: Array, kernel: Array) -> Array:
    """x @ kernel, for a kernel whose outputs come first in memory.

    Libraries rearrange the right operand of a matmul first, and read the left one in place. If x
    has few rows, rearranging the kernel takes as long as the matmul. So here x is on the right.
    """
    if x.ndim > 2 or len(x) > FEW_ROWS:
        return matmul(x, kernel)
    # The barrier keeps XLA from simplifying this to x @ kernel.
    return jax.lax.optimization_barrier(kernel.T.astype(x.dtype) @ x.T).T


def decoding_order(rows: int) -> Order:
    """The fastest axis order of matrices for decoding this many rows at a time.

    On a CPU, Eigen is faster for few rows. It needs inputs first, and is many times slower with
    outputs first. YNN is faster for more rows, and reads outputs first without rearranging them.
    The bound was measured on the shapes of benchmarks/decode.py.
    """
    if platform() != "cpu":
        return "as_trained"
    return "inputs_first" if rows < 8 else "outputs_first"


def decoding_options(rows: int) -> dict[str, bool | str] | None:
    """Compiler options for decoding this many rows at a time."""
    options = compiler_options()
    if decoding_order(rows) == "outputs_first":
        del options["xla_cpu_experimental_ynn_fusion_type"]  # the default: YNN for every matmul
    return options
