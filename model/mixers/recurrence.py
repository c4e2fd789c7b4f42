"""Recurrent cells over a row: one matmul for the inputs of all tokens, then a scan over tokens.

A cell is elementwise; the matmul with the hidden state is here. In the backward pass, the gradient
of the recurrent kernel is one matmul over all tokens. The transpose of a plain scan would add a
matrix as large as the kernel to its total at every token.

Arrays inside scans have the axis of tokens first.
"""

import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.masks import PADDING
from model.mixed_precision import gradient_of_kernel
from model.mixers.mixer import Layer, Mixer, MixerInputs
from model.sharding import constrain

if TYPE_CHECKING:
    from model.config import TransformerConfig

UNROLL = 4  # tokens per step of the loop; measured by benchmarks/mixer_cost.py
NOT_QUANTIZED = "the matmul with the hidden state has no 8-bit form"
BACKWARD = "backward_"  # prefix of the layers that read a row from its end

Vectors = tuple[Array, ...]  # the state of a cell, (B, D) each; the first is the hidden state


class RecurrentState(NamedTuple):
    """The state of a cell after a token, and the segment of that token."""

    vectors: Vectors
    segment_b: Array


class RecurrentMixer(Mixer):
    """Base of mixers that are a cell, applied to one token after another.

    Encoders have two cells. One reads each row from its end; the outputs of both are joined.
    """

    refused: ClassVar = {
        "prefix": "it reads every token once, and a prefix would be read from both ends",
        "quantized": NOT_QUANTIZED,
    }
    gates: int  # blocks of `width` columns that the layers "in" and "recurrent" have
    vectors: int = 1  # of the state
    recurrent_bias = False  # whether the layer "recurrent" has a bias of its own

    def combine(self, x: Array, h: Array) -> Array:
        """Combines what the two layers compute, by sums and selections only."""
        return x + h

    def cell(self, config: "TransformerConfig", gates: Array, vectors: Vectors) -> Vectors:
        """Returns the next state from the result of `combine`, elementwise."""
        raise NotImplementedError

    def layers(self, config: "TransformerConfig", causal: bool) -> dict[str, Layer]:
        columns, bias = self.gates * config.width, None if self.recurrent_bias else False
        found = {}
        for prefix in [""] if causal else ["", BACKWARD]:
            found[f"{prefix}in"] = Layer(columns)
            found[f"{prefix}recurrent"] = Layer(columns, bias)
        return found | {"out": Layer(config.width)}

    def init_state(self, config: "TransformerConfig", variant: int, batch: int) -> RecurrentState:
        vectors = tuple(jnp.zeros((batch, config.width), jnp.float32) for _ in range(self.vectors))
        return RecurrentState(vectors, jnp.full(batch, PADDING, jnp.int32))

    def mix(self, inputs: MixerInputs, state: Any) -> tuple[Array, Any]:
        if inputs.causal:
            vectors_tbd = self._read(inputs, state)
            columns = inputs.state_columns
            vectors = tuple(jnp.moveaxis(v[columns], 0, 1) for v in vectors_tbd)
            states = RecurrentState(vectors, inputs.segments_bt[:, columns])
            return self._output(inputs, vectors_tbd[0]), states
        both = []
        for prefix, one_way in (("", inputs), (BACKWARD, inputs.reversed())):
            start = self.init_state(inputs.config, inputs.variant, len(inputs.x_btd))
            y_btd = self._output(one_way, self._read(one_way, start, prefix)[0])
            both.append(y_btd[:, ::-1] if prefix else y_btd)
        return jnp.concatenate(both, axis=-1), None

    def _read(self, inputs: MixerInputs, state: RecurrentState, prefix: str = "") -> Vectors:
        """Returns the state after each token, (T, B, D) each."""
        x_tba = jnp.moveaxis(inputs.layers[f"{prefix}in"](inputs.x_btd), 1, 0)
        # A scan over tokens needs all of them on one device.
        x_tba = constrain(x_tba, None, "batch", None)
        kernel_da, bias_a = inputs.layers[f"{prefix}recurrent"].weights((inputs.config.width,))
        kernel_da = constrain(kernel_da, None, None)
        if bias_a is None:
            bias_a = jnp.zeros(kernel_da.shape[1:], kernel_da.dtype)
        continues_tb = inputs.continues_bt(state.segment_b).T
        return recur(self, inputs.config, x_tba, kernel_da, bias_a, state.vectors, continues_tb)

    def _output(self, inputs: MixerInputs, y_tbd: Array) -> Array:
        y_btd = jnp.moveaxis(y_tbd, 0, 1)
        return jnp.where(inputs.real_bt1, y_btd, 0.0).astype(inputs.config.dtype)

    def flops(self, config: "TransformerConfig", length: int, causal: bool) -> int:
        directions = 1 if causal else 2
        return directions * 2 * length * (2 * self.gates + 1) * config.width**2


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def recur(
    mixer: RecurrentMixer,
    config: "TransformerConfig",
    x_tba: Array,
    kernel_da: Array,
    bias_a: Array,
    start: Vectors,
    continues_tb: Array,
) -> Vectors:
    """Applies a cell to one token after another; returns the states after them, (T, B, D) each.

    `start` is the state before the first token. The state is zeros before a token that does not
    continue the segment of the token before it. States are float32, matmuls in the type of x.
    """
    return _forward(mixer, config, x_tba, kernel_da, bias_a, start, continues_tb)[0]


def _forward(mixer, config, x_tba, kernel_da, bias_a, start, continues_tb):
    kernel, bias = kernel_da.astype(x_tba.dtype), bias_a.astype(start[0].dtype)

    def step(before: Vectors, given: tuple[Array, Array]):
        x_ba, continues_b = given
        before = _reset(before, continues_b)
        h_ba = _matmul(before[0].astype(kernel.dtype), kernel, bias.dtype) + bias
        gates = mixer.combine(x_ba.astype(bias.dtype), h_ba)
        after = mixer.cell(config, gates, before)
        return after, (after, gates)

    _, (after, gates) = _scan(step, start, (x_tba, continues_tb))
    return after, (gates, kernel_da, bias_a, start, after, continues_tb, x_tba[:0])


def _backward(mixer, config, saved, d_after):
    gates, kernel_da, bias_a, start, after, continues_tb, like = saved
    shifted = (jnp.concatenate([s[None], a[:-1]]) for s, a in zip(start, after, strict=True))
    before = tuple(shifted)
    kernel_ad = kernel_da.astype(like.dtype).T
    x_ba = jnp.zeros(like.shape[1:], start[0].dtype)
    of_combine = jax.linear_transpose(mixer.combine, x_ba, x_ba)

    def step(d_next: Vectors, given):
        d_now, gates, before, continues_b = given
        before = _reset(before, continues_b)
        d_now = tuple(a + b for a, b in zip(d_next, d_now, strict=True))
        _, of_cell = jax.vjp(functools.partial(mixer.cell, config), gates, before)
        d_gates, (d_hidden, *d_others) = of_cell(d_now)
        _, d_h = of_combine(d_gates)
        d_hidden += _matmul(d_h.astype(like.dtype), kernel_ad, d_hidden.dtype)
        return _reset((d_hidden, *d_others), continues_b), d_gates

    zeros = tuple(jnp.zeros_like(s) for s in start)
    given = (d_after, gates, before, continues_tb)
    d_start, d_gates = _scan(step, zeros, given, reverse=True)
    # `combine` adds and selects columns, so the same code does for all tokens.
    d_x, d_h = jax.vmap(of_combine)(d_gates)
    hidden_tbd = _reset((before[0],), continues_tb)[0].astype(like.dtype)
    d_kernel = gradient_of_kernel(hidden_tbd, d_h.astype(like.dtype), kernel_da.dtype)
    d_bias = d_h.sum(axis=(0, 1)).astype(bias_a.dtype)
    return d_x.astype(like.dtype), d_kernel, d_bias, d_start, None


recur.defvjp(_forward, _backward)


def _reset(vectors: Vectors, continues: Array) -> Vectors:
    return tuple(v * continues[..., None].astype(v.dtype) for v in vectors)


def _matmul(x: Array, kernel: Array, dtype: jnp.dtype) -> Array:
    return jnp.matmul(x, kernel, preferred_element_type=dtype)


def _scan(step, start, given, reverse: bool = False):
    length = len(jax.tree.leaves(given)[0])
    return jax.lax.scan(step, start, given, reverse=reverse, unroll=min(UNROLL, length))
