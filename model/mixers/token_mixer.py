"""The module of a token mixer: its dense layers, its pass, and its state as a cache."""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.attention.interface import AttentionContext, write
from model.config import TransformerConfig
from model.layers import Dense
from model.mixers import MIXERS
from model.mixers.mixer import MixerInputs


@flax.struct.dataclass
class MixerCache:
    """The state after the newest token, or the states after the tokens of all slots."""

    state: Any  # arrays (B, ...), or (B, S, ...) with `has_token_slots`
    has_token_slots: bool = flax.struct.field(pytree_node=False, default=False)

    @staticmethod
    def empty(
        config: TransformerConfig, variant: int, batch: int, slots: int, *, keep_tokens: bool
    ) -> "MixerCache":
        """Returns the cache of one layer before the first token."""
        state = MIXERS[config.mixer].init_state(config, variant, batch)
        if not keep_tokens:
            return MixerCache(state)
        state = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], slots, axis=1), state)
        return MixerCache(state, has_token_slots=True)

    def states_at(self, slots_bt: Array) -> Any:
        """Returns the states in these slots of each row, (B, T, ...)."""
        at_slots = jax.vmap(lambda row, slots: row[slots])
        return jax.tree.map(lambda leaf: at_slots(leaf, slots_bt), self.state)


class TokenMixer(nn.Module):
    """The mixer of the config, with a dense layer after it."""

    config: TransformerConfig
    variant: int

    @nn.compact
    def __call__(
        self, x_btd: Array, context: AttentionContext, cache: MixerCache | None = None
    ) -> tuple[Array, MixerCache | None]:
        """Mixes tokens without a cache (training) or with one (decoding).

        Returns the output, (B, T, D), and the cache with the new tokens.
        """
        config, mixer, mask_spec = self.config, MIXERS[self.config.mixer], context.mask_spec
        declared = mixer.layers(config, mask_spec.causal)
        layers = {
            name: Dense(config, (layer.columns,), _axes(name), bias=layer.bias, name=name)
            for name, layer in declared.items()
        }
        inputs = MixerInputs(
            config,
            layers,
            x_btd,
            jnp.broadcast_to(mask_spec.queries.segments_bt, x_btd.shape[:2]),
            mask_spec.queries.prefix_bt,
            causal=mask_spec.causal,
            variant=self.variant,
        )
        if cache is None:
            state = None
            if mask_spec.causal:
                state = mixer.init_state(config, self.variant, len(x_btd))
            y, _ = mixer.mix(inputs, state)
        elif not cache.has_token_slots:
            y, states = mixer.mix(inputs, cache.state)
            cache = cache.replace(state=jax.tree.map(lambda leaf: leaf[:, 0], states))
        else:
            y, cache = self._mix_slots(inputs, context, cache)
        return layers["out"](y), cache

    def _mix_slots(
        self, inputs: MixerInputs, context: AttentionContext, cache: MixerCache
    ) -> tuple[Array, MixerCache]:
        """Mixes new tokens, and stores the state after each in the slot of that token.

        The tokens follow one another, or each is a branch that continues another slot
        (`context.parents_bt`). So the states of rejected tokens and dead branches stay unused.
        """
        mixer, (batch, length) = MIXERS[self.config.mixer], inputs.x_btd.shape[:2]
        slot = context.cache_slot
        if context.parents_bt is None:
            slots = jax.tree.leaves(cache.state)[0].shape[1]
            newest_b1 = jnp.broadcast_to((slot - 1) % slots, (batch,))[:, None]
            start = jax.tree.map(lambda leaf: leaf[:, 0], cache.states_at(newest_b1))
            y, states = mixer.mix(dataclasses.replace(inputs, all_states=True), start)
        else:
            # Each branch becomes a row of one token.
            def rows(x: Array) -> Array:
                return x.reshape(batch * length, 1, *x.shape[2:])

            def branches(x: Array) -> Array:
                return x.reshape(batch, length, *x.shape[2:])

            start = cache.states_at(context.parents_bt)
            start = jax.tree.map(lambda leaf: rows(leaf)[:, 0], start)
            split = dataclasses.replace(
                inputs, x_btd=rows(inputs.x_btd), segments_bt=rows(inputs.segments_bt)
            )
            y, states = mixer.mix(split, start)
            y, states = branches(y), jax.tree.map(branches, states)
        state = jax.tree.map(lambda old, new: write(old, new, slot, axis=1), cache.state, states)
        return y, cache.replace(state=state)


def _axes(name: str) -> tuple[str, str]:
    return ("mixed", "width") if name == "out" else ("width", "mixed")
