"""The simple recurrent network of Elman (1990)."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from model.mixers.recurrence import RecurrentMixer, Vectors

if TYPE_CHECKING:
    from model.config import TransformerConfig


class Rnn(RecurrentMixer):
    name = "rnn"
    description = "a simple recurrent network: h = tanh(W x + U h)"
    gates = 1

    def cell(self, config: "TransformerConfig", gates: Array, vectors: Vectors) -> Vectors:
        return (jnp.tanh(gates),)
