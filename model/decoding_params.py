"""Parameters laid out for decoding, where reading them is most of the work.

Training keeps the layers of a stack in one array. A loop over tokens would cut it apart again for
every token, so here each layer has arrays of its own; and kernels may have their outputs first,
which suits some libraries better when there are only a few rows to multiply with.
"""

import flax.struct
import jax
from jax import Array

from model.config import TransformerConfig
from model.transformer import by_layer


@flax.struct.dataclass
class Turned:
    """A kernel as a matrix with a row for each of its outputs."""

    matrix: Array
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False)

    def turned_back(self) -> Array:
        """As modules want it. Inside a compiled function nothing moves: the product reads it so."""
        return self.matrix.T.reshape(self.shape)


def lay_out(params: dict, config: TransformerConfig, *, turn: bool) -> dict:
    """Parameters of a model that has a decoder -> what `restore` takes."""
    decoder = params["backbone"]["decoder"]
    blocks = by_layer(decoder["blocks"], config.decoder_layers)
    if turn:
        blocks = jax.tree.map_with_path(_turned, blocks)
    backbone = {**params["backbone"], "decoder": {**decoder, "blocks": blocks}}
    return {**params, "backbone": backbone}


def restore(laid_out: dict) -> dict:
    """Parameters that the model's `decode` takes, given a cache; to be called inside the loop."""
    is_turned = lambda leaf: isinstance(leaf, Turned)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.turned_back() if is_turned(leaf) else leaf, laid_out, is_leaf=is_turned
    )


def _turned(path, leaf: Array) -> Array | Turned:
    *_, module, name = (entry.key for entry in path)
    if name != "kernel":
        return leaf
    # Heads and their columns are the inputs of the layer behind attention, elsewhere the outputs.
    matrix = (-1, leaf.shape[-1]) if module == "out" else (leaf.shape[0], -1)
    return Turned(leaf.reshape(matrix).T, leaf.shape)
