"""What a decoder remembers from call to call, as a value."""

import flax.struct
import jax.numpy as jnp
from jax import Array

from model.attention import LayerCache, write
from model.config import TransformerConfig
from model.kernels.attend import feature_map
from model.kernels.linear import empty_sums
from model.kernels.performer import fixed_directions
from model.kinds import SUMMED
from model.masks import Side


@flax.struct.dataclass
class Cache:
    """Everything a decoder remembers between calls. In goes one, out comes the next."""

    layers: tuple[LayerCache, ...]
    positions_bs: Array
    segments_bs: Array  # 0 where the slot is empty or holds padding
    global_bs: Array  # whether the slot holds a global token
    # How many tokens went in: one number, or one for each row. When all slots are taken, a single
    # token takes the place of the oldest.
    index: Array


def remember(cache: Cache, queries: Side, slot: Array) -> tuple[Cache, Side]:
    """The cache with what is known of new tokens, and all that it then knows of keys."""

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
    if queries.prefix_bt is not None:  # tokens behind it see it anyway
        prefix_bs = put(jnp.zeros_like(cache.segments_bs), queries.prefix_bt)
    global_bs = None if queries.global_bt is None else cache.global_bs
    return cache, Side(cache.positions_bs, cache.segments_bs, prefix_bs, global_bs)


def refuse_sums(cache: Cache) -> None:
    """Where tokens are taken back, or shown to some queries and not to others."""
    if any(layer.sums is not None for layer in cache.layers):
        raise ValueError("no token can be hidden in a sum; use empty_cache(..., keep_tokens=True)")


def empty_cache(
    config: TransformerConfig,
    batch: int,
    slots: int,
    source_slots: int = 0,
    *,
    keep_tokens: bool = False,
) -> Cache:
    """A cache for `slots` tokens a row, and for a source of `source_slots` tokens.

    Layers of a kind that sums remember a sum of all tokens, whatever `slots` is. With
    `keep_tokens` they have slots like any other: tokens can then be forgotten, taken back, or be
    branches of a tree.
    """

    def keys_values(length: int) -> tuple[Array, Array]:
        lengthwise = (batch, config.kv_heads, length, config.head_size)
        return (
            jnp.zeros((*lengthwise[:2], config.head_size, length), config.dtype),
            jnp.zeros(lengthwise, config.dtype),
        )

    def layer(kind: str) -> LayerCache:
        if kind in SUMMED and not keep_tokens:
            directions_mk = fixed_directions(config.attention_features, config.head_size)
            features = feature_map(config, kind, directions_mk)
            cache = LayerCache(sums=empty_sums(batch, config.kv_heads, config.head_size, features))
        else:
            cache = LayerCache(*keys_values(slots))
        if kind == "longformer":
            keys, values = keys_values(slots)
            cache = cache.replace(global_key_bgks=keys, global_value_bgsk=values)
        if config.family == "encoder_decoder":
            keys, values = keys_values(source_slots)
            cache = cache.replace(cross_key_bgks=keys, cross_value_bgsk=values)
        return cache

    return Cache(
        layers=tuple(layer(config.attention_kind(n)) for n in range(config.decoder_layers)),
        positions_bs=jnp.zeros((batch, slots), jnp.int32),
        segments_bs=jnp.zeros((batch, slots), jnp.int32),
        global_bs=jnp.zeros((batch, slots), bool),
        index=jnp.zeros((), jnp.int32),
    )
