"""Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)."""

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from model.mixers.recurrence import RecurrentMixer, Vectors

if TYPE_CHECKING:
    from model.config import TransformerConfig


class Lstm(RecurrentMixer):
    name = "lstm"
    description = "long short-term memory: input, forget and output gates"
    # Added to the forget gate, so that a new model does not forget at once (Jozefowicz et al.,
    # 2015).
    options: ClassVar = {"forget_bias": 1.0}
    gates = 4  # input, forget, candidate, output
    vectors = 2

    def cell(self, config: "TransformerConfig", gates: Array, vectors: Vectors) -> Vectors:
        _, memory = vectors
        enter, forget, candidate, leave = jnp.split(gates, 4, axis=-1)
        forget = jax.nn.sigmoid(forget + config.mixer_option("forget_bias"))
        memory = forget * memory + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory
