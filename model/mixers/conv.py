"""Gated convolutions over tokens, as in ByteNet (Kalchbrenner et al., 2016) and ConvS2S
(Gehring et al., 2017).

    y_t = (A [x_t, x_{t-d}, ...]) * sigmoid(B [x_t, x_{t-d}, ...])

In decoders the window ends at its token, in encoders the token is in its middle. Tokens of other
segments count as zeros.

The state is the earlier tokens, (B, S, D).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.masks import PADDING
from model.mixers.mixer import Layer, Mixer, MixerInputs

if TYPE_CHECKING:
    from model.config import TransformerConfig


class ConvState(NamedTuple):
    """The latest inputs of a convolution, and their segments."""

    x_bsd: Array
    segments_bs: Array


class Conv(Mixer):
    name = "conv"
    description = "a gated convolution; each layer may have another dilation"
    refused: ClassVar = {
        "prefix": "a decoder's window ends at its token, and a prefix is read both ways",
        "quantized": "no test compares it in 8 bits",
    }
    # taps: tokens in a window. dilations: the layers have the dilations 1, 2, 4, ..., this many of
    # them, and then begin again; 1: none.
    options: ClassVar = {"taps": 3, "dilations": 1}

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        for name in self.options:
            value = config.mixer_option(name)
            if value < 1 or value != int(value):
                yield f"model.mixer_options: {name}={value:g} must be a whole number from 1 on"
        taps = config.mixer_option("taps")
        if config.has_encoder and taps % 2 == 0:
            yield (
                f"model.mixer_options: taps={taps:g} must be odd in an encoder, whose tokens are "
                "in the middle of their window"
            )
        if config.mixer_option("dilations") > 16:
            yield (
                f"model.mixer_options: dilations={config.mixer_option('dilations'):g} doubles the "
                "dilation that often; choose at most 16"
            )

    def variants(self, config: "TransformerConfig") -> tuple[int, ...]:
        """The dilations of the layers."""
        return tuple(2**n for n in range(int(config.mixer_option("dilations"))))

    def layers(self, config: "TransformerConfig", causal: bool) -> dict[str, Layer]:
        return {"in": Layer(2 * config.width), "out": Layer(config.width)}

    def init_state(self, config: "TransformerConfig", variant: int, batch: int) -> ConvState:
        shape = (batch, _reach(config, variant))
        x_bsd = jnp.zeros((*shape, config.width), config.dtype)
        return ConvState(x_bsd, jnp.full(shape, PADDING, jnp.int32))

    def mix(self, inputs: MixerInputs, state: Any) -> tuple[Array, Any]:
        reach, length = _reach(inputs.config, inputs.variant), inputs.x_btd.shape[1]
        x_btd, segments_bt = inputs.x_btd.astype(inputs.config.dtype), inputs.segments_bt
        if inputs.causal:
            x_bsd = jnp.concatenate([state.x_bsd, x_btd], axis=1)
            segments_bs = jnp.concatenate([state.segments_bs, segments_bt], axis=1)
        else:
            outside = ((0, 0), (reach // 2, reach // 2))
            x_bsd = jnp.pad(x_btd, (*outside, (0, 0)))
            segments_bs = jnp.pad(segments_bt, outside, constant_values=PADDING)
        taps = []
        for first in range(0, reach + 1, inputs.variant):
            columns = slice(first, first + length)
            is_same_bt = (segments_bs[:, columns] == segments_bt) & (segments_bt != PADDING)
            taps.append(jnp.where(is_same_bt[..., None], x_bsd[:, columns], 0.0))
        values_btd, gates_btd = jnp.split(
            inputs.layers["in"](jnp.concatenate(taps, axis=-1)), 2, axis=-1
        )
        y_btd = values_btd * jax.nn.sigmoid(gates_btd)
        y_btd = jnp.where(inputs.real_bt1, y_btd, 0.0)
        if not inputs.causal:
            return y_btd, None
        # The state after token t is the columns that end there.
        ends = np.arange(length)[inputs.state_columns]
        columns = 1 + ends[:, None] + np.arange(reach)
        return y_btd, ConvState(x_bsd[:, columns], segments_bs[:, columns])

    def flops(self, config: "TransformerConfig", length: int, causal: bool) -> int:
        taps = int(config.mixer_option("taps"))
        return 2 * length * (2 * taps + 1) * config.width**2


def _reach(config: "TransformerConfig", dilation: int) -> int:
    """Returns the distance between the first and the last token of a window."""
    return (int(config.mixer_option("taps")) - 1) * dilation
