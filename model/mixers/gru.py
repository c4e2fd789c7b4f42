"""The gated recurrent unit (Cho et al., 2014), in the form of cuDNN and torch.

The reset gate acts on the product of the hidden state, not on the hidden state itself, so that one
matmul serves all gates.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from model.mixers.recurrence import RecurrentMixer, Vectors

if TYPE_CHECKING:
    from model.config import TransformerConfig


class Gru(RecurrentMixer):
    name = "gru"
    description = "a gated recurrent unit: reset and update gates"
    gates = 3  # reset, update, candidate
    recurrent_bias = True

    def combine(self, x: Array, h: Array) -> Array:
        """The first two gates add up; the candidate needs both parts."""
        width = x.shape[-1] // self.gates
        first, last = slice(2 * width), slice(2 * width, None)
        return jnp.concatenate([x[..., first] + h[..., first], x[..., last], h[..., last]], axis=-1)

    def cell(self, config: "TransformerConfig", gates: Array, vectors: Vectors) -> Vectors:
        (hidden,) = vectors
        reset, update, candidate_x, candidate_h = jnp.split(gates, 4, axis=-1)
        candidate = jnp.tanh(candidate_x + jax.nn.sigmoid(reset) * candidate_h)
        update = jax.nn.sigmoid(update)
        return ((1 - update) * candidate + update * hidden,)
