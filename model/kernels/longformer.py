"""Longformer: a window, with gaps if wanted, and global tokens with projections of their own.

A global token sees all that the rule of masks lets it see, through queries, keys and values of its
own kind; every other token sees its window and all global tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from model.kernels.banded import Band, Everywhere, banded_attention
from model.kernels.dot import Heads, dot_attention
from model.kernels.flash import flash_attention
from model.masks import PADDING, Sight
from model.positions import ScoreBias


def longformer_attention(
    local: Heads,
    general: Heads,
    sight: Sight,
    *,
    limit: int,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """`general` holds what global tokens see through; `sight` says which they are, and the window.

    Up to `limit` global tokens in a row are collected, at a cost that grows with the length alone.
    Where a row has more, the whole batch goes the long way, which is right whatever their number.
    """
    keys = dropout_key, None
    if dropout_rate:
        keys = tuple(jax.random.split(dropout_key))
    options = dict(bias=bias, scale=scale, dropout_rate=dropout_rate)
    limit = min(limit, local.q_bthk.shape[1])
    fits = sight.queries.global_bt.sum(axis=1).max() <= limit

    def collected() -> Array:
        return _collected(local, general, sight, limit, keys, options)

    def in_full() -> Array:
        return _in_full(local, general, sight, keys, options)

    # What is kept for the backward pass is kept for either outcome: so the rare one keeps nothing.
    return jax.lax.cond(fits, collected, jax.checkpoint(in_full))


def _collected(
    local: Heads, general: Heads, sight: Sight, limit: int, keys: tuple, options: dict
) -> Array:
    rows, length = local.q_bthk.shape[:2]
    side = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, length)), sight.keys)
    # The columns of global tokens; what is left of the limit points behind the last column.
    find = jax.vmap(lambda row: jnp.nonzero(row, size=limit, fill_value=length)[0])
    columns_be = find(side.global_bt)

    def collect(x: Array) -> Array:
        places = columns_be.reshape(rows, limit, *(1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, jnp.minimum(places, length - 1), axis=1)

    globals_ = jax.tree.map(collect, side)
    segments_be = jnp.where(columns_be < length, globals_.segments_bt, PADDING)
    globals_ = dataclasses.replace(globals_, segments_bt=segments_be)

    # Global keys are seen from everywhere, and not a second time by those who are near.
    others = jnp.where(side.global_bt, PADDING, side.segments_bt)
    near_only = dataclasses.replace(
        sight,
        queries=dataclasses.replace(sight.queries, global_bt=None),
        keys=dataclasses.replace(side, segments_bt=others, global_bt=None),
    )
    everywhere = Everywhere(
        collect(local.k_bsgk),
        collect(local.v_bsgk),
        globals_,
        lambda queries, keys: Sight(queries, keys, sight.causal).mask_b1ts(),
    )
    bands = [Band(local.k_bsgk, local.v_bsgk, sight.near)]
    y_bthk = banded_attention(
        local.q_bthk, bands, near_only, everywhere=everywhere, dropout_key=keys[0], **options
    )
    of_globals = _in_memory(
        general._replace(q_bthk=collect(general.q_bthk)),
        Sight(globals_, side, sight.causal),
        dropout_key=keys[1],
        **options,
    )
    return y_bthk.at[jnp.arange(rows)[:, None], columns_be].set(of_globals, mode="drop")


def _in_memory(heads: Heads, sight: Sight, *, bias: ScoreBias | None, scale, **options) -> Array:
    """Few queries and all keys: the scores fit."""
    bias_bhts = None
    if bias is not None:
        bias_bhts = bias(None, sight.queries.positions_bt, sight.keys.positions_bt)
    given = dict(mask_b1ts=sight.mask_b1ts(), bias_bhts=bias_bhts, scale=scale)
    return dot_attention(*heads, **given, **options)


def _in_full(local: Heads, general: Heads, sight: Sight, keys: tuple, options: dict) -> Array:
    """Everything for everyone: time grows with the square of the length, memory does not."""
    y_bthk = flash_attention(*local, sight, dropout_key=keys[0], **options)
    whole = dataclasses.replace(sight, near=None)
    of_globals = flash_attention(*general, whole, dropout_key=keys[1], **options)
    return jnp.where(sight.queries.global_bt[:, :, None, None], of_globals, y_bthk)
