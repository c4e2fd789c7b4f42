"""A bag of tokens: the mean of the values of all visible tokens.

A query sees the tokens that attention would see. The sum over them is an associative scan that
restarts at each segment, so examples that share a row do not share rounding errors either.

The values of a token get a 1 behind them (W = D + 1), whose sum is the number of tokens.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.masks import PADDING
from model.mixers.mixer import Layer, Mixer, MixerInputs

if TYPE_CHECKING:
    from model.config import TransformerConfig


class MeanState(NamedTuple):
    """The sum over the tokens of the newest segment."""

    total_bw: Array
    segment_b: Array


class Mean(Mixer):
    name = "mean"
    description = "a bag of tokens: the mean of the values of all visible tokens"
    refused: ClassVar = {"quantized": "no test compares it in 8 bits"}

    def layers(self, config: "TransformerConfig", causal: bool) -> dict[str, Layer]:
        return {"in": Layer(config.width), "out": Layer(config.width)}

    def init_state(self, config: "TransformerConfig", variant: int, batch: int) -> MeanState:
        total_bw = jnp.zeros((batch, config.width + 1), jnp.float32)
        return MeanState(total_bw, jnp.full(batch, PADDING, jnp.int32))

    def mix(self, inputs: MixerInputs, state: Any) -> tuple[Array, Any]:
        values_btd = inputs.layers["in"](inputs.x_btd).astype(jnp.float32)
        v_btw = jnp.pad(values_btd, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)
        v_btw = jnp.where(inputs.real_bt1, v_btw, 0.0)
        if not inputs.causal:
            state = self.init_state(inputs.config, inputs.variant, len(v_btw))
        before_btw = _segment_totals(v_btw, inputs.continues_bt(state.segment_b), state.total_bw)
        total_btw = before_btw
        if not inputs.causal or inputs.prefix_bt is not None:
            later_btw = v_btw
            if inputs.causal:
                later_btw = jnp.where(inputs.prefix_bt[..., None].astype(bool), v_btw, 0.0)
            none_bw = jnp.zeros_like(v_btw[:, 0])
            continues_bt = inputs.reversed().continues_bt(jnp.full(len(v_btw), PADDING, jnp.int32))
            after_btw = _segment_totals(later_btw[:, ::-1], continues_bt, none_bw)[:, ::-1]
            total_btw = before_btw + after_btw - later_btw  # each token counts once
        y_btd = total_btw[..., :-1] / jnp.maximum(total_btw[..., -1:], 1.0)
        y_btd = jnp.where(inputs.real_bt1, y_btd, 0.0).astype(inputs.config.dtype)
        columns = inputs.state_columns
        return y_btd, MeanState(before_btw[:, columns], inputs.segments_bt[:, columns])

    def flops(self, config: "TransformerConfig", length: int, causal: bool) -> int:
        return 2 * length * 2 * config.width**2


def _segment_totals(v_btw: Array, continues_bt: Array, start_bw: Array) -> Array:
    """Returns the sums over each segment up to each token; `start_bw` is before the first."""
    continues_bt1 = continues_bt[..., None].astype(v_btw.dtype)
    v_btw = v_btw.at[:, 0].add(start_bw * continues_bt1[:, 0])

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return jax.lax.associative_scan(add, (continues_bt1, v_btw), axis=1)[1]
