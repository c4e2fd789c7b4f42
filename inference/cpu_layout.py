"""How parameters lie in memory for decoding, where reading them is most of the work.

Training stacks the layers of a stack in one array. A loop over tokens would cut it apart again for
every token, so here each layer has its own arrays. On a CPU the order of a matrix matters as well:
libraries that multiply a few rows with a large matrix want its inputs first, or its outputs.
Kernels have their inputs first; the token table, where it is also the output layer, has its
outputs first. `lay_out` transposes what has to be, and `reading` lets the model's products
read it so. The model itself knows nothing of this.
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
from model.transformer import by_layer
from training.compilation import compiler_options

Order = Literal["as_trained", "inputs_first", "outputs_first"]
FEW_ROWS = 128  # measured on the shapes of benchmarks/decode.py


@flax.struct.dataclass
class Transposed:
    """A parameter as a matrix, transposed."""

    matrix: Array
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False)

    def restored(self) -> Array:
        """In the model's shape. In a compiled function nothing moves: the product reads it so."""
        return self.matrix.T.reshape(self.shape)


def lay_out(params: dict, config: TransformerConfig, order: Order) -> dict:
    """Parameters of a model that has a decoder -> what `restore` takes."""
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
    """Parameters that the model's `decode` takes, given a cache; to be called inside the loop."""
    is_transposed = lambda leaf: isinstance(leaf, Transposed)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.restored() if is_transposed(leaf) else leaf,
        laid_out,
        is_leaf=is_transposed,
    )


def _transposed(module: dict, name: str = "") -> dict:
    """The module with its kernel transposed, or those of the modules inside."""
    if "kernel" not in module:
        return {
            key: _transposed(value, key) if isinstance(value, dict) else value
            for key, value in module.items()
        }
    kernel = module["kernel"]
    # Heads and their columns are the inputs of the layer behind attention, elsewhere the outputs.
    matrix = (-1, kernel.shape[-1]) if name == "out" else (kernel.shape[0], -1)
    return module | {"kernel": Transposed(kernel.reshape(matrix).T, kernel.shape)}


@contextlib.contextmanager
def reading(order: Order) -> Iterator[None]:
    """Model calls inside read matrices in the order in which `lay_out` has laid them."""

    def multiply(next_function, args, kwargs, context):
        is_product = context.method_name == "multiply"
        is_float = getattr(context.module, "matmul", "float") == "float"
        if is_product and is_float and isinstance(context.module, Dense | Embedding):
            return matmul_transposed(*args)
        return next_function(*args, **kwargs)

    with nn.intercept_methods(multiply) if order == "outputs_first" else contextlib.nullcontext():
        yield


def matmul_transposed(x: Array, kernel: Array) -> Array:
    """x @ kernel, for a kernel whose outputs come first in memory.

    Libraries rearrange the right operand of a product before they use it, and read the left one in
    place. With few rows that takes as long as the product, unless x is the right operand.
    """
    if x.ndim > 2 or len(x) > FEW_ROWS:
        return matmul(x, kernel)
    # The barrier keeps XLA from simplifying this to x @ kernel.
    return jax.lax.optimization_barrier(kernel.T.astype(x.dtype) @ x.T).T


def decoding_order(rows: int) -> Order:
    """How the matrices should lie to decode so many rows at a time.

    On a CPU, Eigen is the faster for few rows and wants inputs first; it is many times slower with
    outputs first. For more rows YNN is, which reads outputs first as they lie.
    The bound was measured on the shapes of benchmarks/decode.py.
    """
    if platform() != "cpu":
        return "as_trained"
    return "inputs_first" if rows < 8 else "outputs_first"


def decoding_options(rows: int) -> dict[str, bool | str] | None:
    options = compiler_options()
    if decoding_order(rows) == "outputs_first":
        del options["xla_cpu_experimental_ynn_fusion_type"]  # by default it does all products
    return options
