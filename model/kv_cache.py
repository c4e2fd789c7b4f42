"""The decoder's cache as a value: the caches of all layers, with the positions of their tokens.

The buffers of keys and values, and the writes to them, are `KeyValues` in
model/attention/interface.py. `LayerCache` in model/attention/module.py is the cache of one block; a
kind of attention may have a recurrent state in it instead of keys and values, as a token mixer has
(model/mixers/token_mixer.py).
"""

import flax.struct
import jax.numpy as jnp
from jax import Array

from model.attention import KINDS
from model.attention.interface import KeyValues, write
from model.attention.module import LayerCache
from model.config import TransformerConfig
from model.masks import SequenceInfo
from model.mixers import ATTENTION
from model.mixers.token_mixer import MixerCache


@flax.struct.dataclass
class Cache:
    """The cache of a decoder. Each call takes one and returns the next."""

    layers: tuple[LayerCache, ...]
    positions_bs: Array
    segments_bs: Array  # 0 where the slot is empty or holds padding
    global_bs: Array  # whether the slot holds a global token
    # The number of tokens written: a scalar, or one per row. When all slots are full, a token
    # replaces the oldest one.
    index: Array
    source_bsd: Array | None = None  # the encoder's hidden states, for model.bridge=context_vector


def add_tokens(cache: Cache, queries: SequenceInfo, slot: Array) -> tuple[Cache, SequenceInfo]:
    """Adds the positions and segments of new tokens; returns the cache and its keys' info."""

    def put(buffer_bs: Array, new_bt: Array) -> Array:
        new_bt = jnp.broadcast_to(new_bt, (len(buffer_bs), new_bt.shape[1]))
        return write(buffer_bs, new_bt, slot, axis=1)

    cache = cache.replace(
        positions_bs=put(cache.positions_bs, queries.positions_bt),
        segments_bs=put(cache.segments_bs, queries.segments_bt),
    )
    if queries.global_bt is not None:
        cache = cache.replace(global_bs=put(cache.global_bs, queries.global_bt))
    prefix_bs = None
    # Not stored: to the queries of later calls, the prefix is an earlier position, so they see it.
    if queries.prefix_bt is not None:
        prefix_bs = put(jnp.zeros_like(cache.segments_bs), queries.prefix_bt)
    global_bs = None if queries.global_bt is None else cache.global_bs
    return cache, SequenceInfo(cache.positions_bs, cache.segments_bs, prefix_bs, global_bs)


def require_token_slots(cache: Cache) -> None:
    """Raises if tokens of the cache cannot be removed, or masked for some queries."""
    if not all(layer.self_attention.has_token_slots for layer in cache.layers):
        raise ValueError(
            "no token can be masked in a recurrent state; use empty_cache(..., keep_tokens=True)"
        )


def empty_cache(
    config: TransformerConfig,
    batch: int,
    slots: int,
    source_slots: int = 0,
    *,
    keep_tokens: bool = False,
) -> Cache:
    """Returns an empty cache for `slots` tokens per row and a source of `source_slots` tokens.

    Some attention kinds have a state of fixed size, whatever `slots` is. With `keep_tokens` every
    kind has a slot per token, so that tokens can be removed, or form the branches of a tree.
    """

    def layer(number: int) -> LayerCache:
        kind, variant, *_ = config.layer_kind(number)
        if config.mixer == ATTENTION:
            own = KINDS[kind].init_cache(config, batch, slots, keep_tokens=keep_tokens)
        else:
            own = MixerCache.empty(config, variant, batch, slots, keep_tokens=keep_tokens)
        if not config.has_cross_attention:
            return LayerCache(own)
        return LayerCache(own, KeyValues.empty(config, batch, source_slots))

    source_bsd = None
    if config.has_context_vector:
        source_bsd = jnp.zeros((batch, source_slots, config.width), config.dtype)
    return Cache(
        layers=tuple(map(layer, range(config.decoder_layers))),
        positions_bs=jnp.zeros((batch, slots), jnp.int32),
        segments_bs=jnp.zeros((batch, slots), jnp.int32),
        global_bs=jnp.zeros((batch, slots), bool),
        index=jnp.zeros((), jnp.int32),
        source_bsd=source_bsd,
    )
