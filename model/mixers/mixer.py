"""The interface of token mixers, which take the place of self-attention in a block.

A mixer is one object in one file of this package. It declares its dense layers, and `mix` is a pure
function of what they compute: one pass for training and decoding. Its state is a value: in goes the
state before the first token, out come the states after tokens. `MIXERS` in `__init__.py` lists the
mixers. Nothing else in the project names one.

Adjacent columns with the same segment id are one example. A mixer restarts where the id changes, so
neither packed examples nor padding mix with another example.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from model.masks import PADDING

if TYPE_CHECKING:
    from model.config import TransformerConfig
    from model.layers import Dense

# The features that a mixer supports or refuses: the columns of the table in docs/mixers.md.
FEATURES = {
    "two_sided": "encoders",
    "causal": "decoders",
    "padding": "positions without a token",
    "segments": "several examples packed into a row",
    "prefix": "task.objective=prefix_lm",
    "cached": "decoding token by token",
    "branches": "beam search and speculative decoding",
    "bfloat16": "model.dtype=bfloat16",
    "quantized": "model.matmul=int8 or fp8",
}


class Layer(NamedTuple):
    """A dense layer of a mixer. Its inputs are `width` columns, or a multiple of that."""

    columns: int
    bias: bool | None = None  # None: as in the config


@dataclasses.dataclass(frozen=True)
class MixerInputs:
    """The inputs of one layer's mixer."""

    config: "TransformerConfig"
    layers: Mapping[str, "Dense"]  # as declared by `Mixer.layers`
    x_btd: Array
    segments_bt: Array
    prefix_bt: Array | None = None  # tokens that the earlier ones of their segment see too
    causal: bool = True
    variant: int = 0  # of this layer; see `Mixer.variants`
    all_states: bool = False  # whether `mix` returns the states after all tokens, or the last

    @property
    def state_columns(self) -> slice:
        """The columns whose states `mix` returns."""
        return slice(None) if self.all_states else slice(-1, None)

    @property
    def real_bt1(self) -> Array:
        """Whether there is a token, (B, T, 1)."""
        return (self.segments_bt != PADDING)[..., None]

    def continues_bt(self, segment_b: Array) -> Array:
        """Whether a column continues the segment before it; `segment_b` is before the first."""
        before_bt = jnp.concatenate([segment_b[:, None], self.segments_bt[:, :-1]], axis=1)
        return before_bt == self.segments_bt

    def reversed(self) -> "MixerInputs":
        """The same rows, read from their ends."""
        return dataclasses.replace(
            self, x_btd=self.x_btd[:, ::-1], segments_bt=self.segments_bt[:, ::-1]
        )


class Mixer:
    """A token mixer. Subclasses define all but `refused`, `options`, `problems` and `variants`."""

    name: str
    description: str
    refused: ClassVar[Mapping[str, str]] = {}  # unsupported features, with the reason
    options: ClassVar[Mapping[str, float]] = {}  # model.mixer_options: keys and defaults

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        """Yields what is wrong with a config that uses this mixer."""
        return iter(())

    def variants(self, config: "TransformerConfig") -> tuple[int, ...]:
        """Returns what differs between layers, as numbers. The layers repeat them."""
        return (0,)

    def layers(self, config: "TransformerConfig", causal: bool) -> dict[str, Layer]:
        """Returns the dense layers, by name. All but the layer "out" are called by `mix`."""
        raise NotImplementedError

    def init_state(self, config: "TransformerConfig", variant: int, batch: int) -> Any:
        """Returns the state before the first token: arrays (B, ...)."""
        raise NotImplementedError

    def mix(self, inputs: MixerInputs, state: Any) -> tuple[Array, Any]:
        """Mixes tokens, with a state before the first (`causal`) or without one.

        Returns the input of the layer "out", (B, T, its inputs), zeros where there is no token; and
        the states after the tokens in `inputs.state_columns`, arrays (B, columns, ...), or None
        unless causal.
        """
        raise NotImplementedError

    def flops(self, config: "TransformerConfig", length: int, causal: bool) -> int:
        """Returns the FLOPs of the matmuls of one layer on one row, forward."""
        raise NotImplementedError
