"""Who may look at whom: one rule for training, packing, padding, prefixes and cached decoding."""

import jax.numpy as jnp
from jax import Array

PADDING = 0  # the segment id of positions that hold nothing


def attention_mask(
    query_positions_bt: Array,
    key_positions_bs: Array,
    query_segments_bt: Array,
    key_segments_bs: Array,
    *,
    causal: bool,
    key_prefix_bs: Array | None = None,
) -> Array:
    """True where a query may look at a key, (B, 1, T, S).

    A query sees the keys of its own segment: packed examples do not see each other, and nothing
    sees padding. With `causal`, it sees those at its own position and before; keys marked in
    `key_prefix_bs` are seen from everywhere in their segment (prefix language models). Cross
    attention is the same rule without `causal`, the source's segments being the keys'.
    """
    query_segments_bt1, key_segments_b1s = query_segments_bt[:, :, None], key_segments_bs[:, None]
    mask_bts = (query_segments_bt1 == key_segments_b1s) & (key_segments_b1s != PADDING)
    if causal:
        visible_bts = key_positions_bs[:, None] <= query_positions_bt[:, :, None]
        if key_prefix_bs is not None:
            visible_bts |= key_prefix_bs[:, None].astype(bool)
        mask_bts &= visible_bts
    return mask_bts[:, None]


def positions_or_default(positions_bt: Array | None, like_bt: Array) -> Array:
    """The given positions, or 0, 1, 2, ... for every row, (1, T)."""
    if positions_bt is not None:
        return positions_bt
    return jnp.arange(like_bt.shape[1], dtype=jnp.int32)[None]


def segments_or_default(segments_bt: Array | None, like_bt: Array) -> Array:
    """The given segments, or one that spans the row, (1, T)."""
    if segments_bt is not None:
        return segments_bt
    return jnp.ones((1, like_bt.shape[1]), jnp.int32)
