"""Parameters laid out for decoding, where reading them is most of the work.

Training keeps the layers of a stack in one array. A loop over tokens would cut it apart again for
every token, so here each layer has arrays of its own. And libraries that multiply a few rows with
a large matrix want its inputs first, or its outputs: kernels have their inputs first, the table of
tokens, where it is the output layer too, its outputs. So one or the other may have to be turned.
"""

from typing import Literal

import flax.struct
import jax
from jax import Array

from model.config import TransformerConfig
from model.layers import OUTPUTS_FIRST
from model.sharding import platform
from model.transformer import by_layer
from training.compilation import compiler_options

Order = Literal["as_trained", "inputs_first", "outputs_first"]
MARK = {OUTPUTS_FIRST: ()}


@flax.struct.dataclass
class Turned:
    """A parameter as a matrix, transposed."""

    matrix: Array
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False)

    def turned_back(self) -> Array:
        """As modules want it. Inside a compiled function nothing moves: the product reads it so."""
        return self.matrix.T.reshape(self.shape)


def lay_out(params: dict, config: TransformerConfig, order: Order) -> dict:
    """Parameters of a model that has a decoder -> what `restore` takes."""
    backbone = dict(params["backbone"])
    decoder = backbone["decoder"]
    blocks = by_layer(decoder["blocks"], config.decoder_layers)
    vocabulary = {name: module for name, module in params.items() if name == "vocabulary"}
    if order == "outputs_first":
        blocks, vocabulary = _outputs_first(blocks), _outputs_first(vocabulary)
        if config.tie_output:  # which has its outputs first as it is
            backbone["token_embedding"] = backbone["token_embedding"] | MARK
    if order == "inputs_first" and config.tie_output:
        table = backbone["token_embedding"]["embedding"]
        backbone["token_embedding"] = {"embedding": Turned(table.T, table.shape)}
    backbone["decoder"] = {**decoder, "blocks": blocks}
    return {**params, **vocabulary, "backbone": backbone}


def restore(laid_out: dict) -> dict:
    """Parameters that the model's `decode` takes, given a cache; to be called inside the loop."""
    is_turned = lambda leaf: isinstance(leaf, Turned)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.turned_back() if is_turned(leaf) else leaf, laid_out, is_leaf=is_turned
    )


def _outputs_first(module: dict, name: str = "") -> dict:
    """The module with its kernel turned and marked, or those of the modules inside."""
    if "kernel" not in module:
        return {
            key: _outputs_first(value, key) if isinstance(value, dict) else value
            for key, value in module.items()
        }
    kernel = module["kernel"]
    # Heads and their columns are the inputs of the layer behind attention, elsewhere the outputs.
    matrix = (-1, kernel.shape[-1]) if name == "out" else (kernel.shape[0], -1)
    return module | MARK | {"kernel": Turned(kernel.reshape(matrix).T, kernel.shape)}


def decoding_order(rows: int) -> Order:
    """How the matrices should lie to decode so many rows at a time.

    On a CPU, Eigen is the faster for few rows and wants inputs first; it is many times slower with
    outputs first. For more rows YNN is, which reads outputs first as they lie (`turned_product`).
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
