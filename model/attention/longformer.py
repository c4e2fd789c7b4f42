"""Longformer: a window, which may be dilated, and global tokens with separate projections.

A global token attends to all keys that the mask allows, with the global queries, keys and values.
Every other token attends to its window and to all global tokens.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.attention.banded import Band, Everywhere, banded_attention
from model.attention.dot_attention import QKV, cached_attention, dot_attention
from model.attention.flash_attention import flash_attention
from model.attention.interface import (
    NEEDS_SCORES,
    NO_SINKS,
    AttentionInputs,
    AttentionKind,
    KeyValues,
)
from model.masks import PADDING, Locality, MaskSpec
from model.positions import ScoreBias

if TYPE_CHECKING:
    from model.config import TransformerConfig


@flax.struct.dataclass
class LongformerCache:
    """The keys and values of all tokens, for local and for global queries."""

    local: KeyValues
    of_globals: KeyValues
    has_token_slots: ClassVar[bool] = True


class Longformer(AttentionKind):
    name = "longformer"
    description = "a window, which may be dilated, and global tokens, visible at any distance"
    refused: ClassVar = {"relative": NEEDS_SCORES, "sinks": NO_SINKS}
    keys = ("attention_window", "attention_dilation", "global_tokens", "global_limit")
    extra_qkv = ("global",)
    uses_global_tokens = True

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        if config.global_tokens == "question" and config.has_decoder:
            yield (
                "model.global_tokens=question marks the first of two texts that an encoder reads; "
                f"with family={config.family} choose first or separators"
            )
        if config.global_tokens != "first" and config.input == "patches":
            yield (
                f"model.global_tokens={config.global_tokens} is for tokens; "
                "with model.input=patches choose first"
            )

    def locality(self, config: "TransformerConfig") -> Locality:
        return Locality(window=config.attention_window, dilation=config.attention_dilation)

    def attend(self, inputs: AttentionInputs) -> Array:
        return longformer_attention(
            inputs.qkv,
            inputs.project("global"),
            inputs.mask_spec,
            limit=inputs.config.global_limit,
            bias=inputs.bias,
            **inputs.softmax_options,
        )

    def init_cache(self, config, batch: int, slots: int, *, keep_tokens: bool) -> LongformerCache:
        return LongformerCache(*(KeyValues.empty(config, batch, slots) for _ in range(2)))

    def decode(
        self, inputs: AttentionInputs, cache: LongformerCache
    ) -> tuple[Array, LongformerCache]:
        context = inputs.context
        y_bthk, local = super().decode(inputs, cache.local)
        q_bthk, k_btgk, v_btgk = inputs.project("global")
        of_globals = cache.of_globals.write(k_btgk, v_btgk, context.cache_slot)
        globals_bthk = cached_attention(
            q_bthk,
            of_globals.key_bgks,
            of_globals.value_bgsk,
            mask_b1ts=context.mask_b1ts,
            bias_bhts=inputs.bias_bhts,
            scale=inputs.scale,
            cap=inputs.cap,
        )
        is_global_bt11 = context.mask_spec.queries.global_bt[:, :, None, None]
        y_bthk = jnp.where(is_global_bt11, globals_bthk, y_bthk)
        return y_bthk, LongformerCache(local, of_globals)


def longformer_attention(
    qkv: QKV,
    global_qkv: QKV,
    mask_spec: MaskSpec,
    *,
    limit: int,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Longformer attention, (B, T, H, K). `mask_spec` has the window and the global tokens.

    With at most `limit` global tokens per row, the cost is linear in the length. If a row has
    more, the whole batch takes a quadratic path, which is correct for any number.
    """
    keys = dropout_key, None
    if dropout_rate:
        keys = tuple(jax.random.split(dropout_key))
    options = dict(bias=bias, scale=scale, cap=cap, dropout_rate=dropout_rate)
    limit = min(limit, qkv.q_bthk.shape[1])
    fits = mask_spec.queries.global_bt.sum(axis=1).max() <= limit

    def collected() -> Array:
        return _collected(qkv, global_qkv, mask_spec, limit, keys, options)

    def in_full() -> Array:
        return _in_full(qkv, global_qkv, mask_spec, keys, options)

    # A cond saves the residuals of both branches, so the rare branch saves none.
    return jax.lax.cond(fits, collected, jax.checkpoint(in_full))


def _collected(
    qkv: QKV, global_qkv: QKV, mask_spec: MaskSpec, limit: int, keys: tuple, options: dict
) -> Array:
    """A banded pass for all tokens, and one for the `limit` collected global tokens."""
    rows, length = qkv.q_bthk.shape[:2]
    info = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, length)), mask_spec.keys)
    # The columns of global tokens; unused entries are `length`, behind the last column.
    find = jax.vmap(lambda row: jnp.nonzero(row, size=limit, fill_value=length)[0])
    columns_bx = find(info.global_bt)

    def collect(x: Array) -> Array:
        places = columns_bx.reshape(rows, limit, *(1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, jnp.minimum(places, length - 1), axis=1)

    globals_ = jax.tree.map(collect, info)
    segments_bx = jnp.where(columns_bx < length, globals_.segments_bt, PADDING)
    globals_ = dataclasses.replace(globals_, segments_bt=segments_bx)

    # Global keys are in `everywhere`, so the window leaves them out.
    others = jnp.where(info.global_bt, PADDING, info.segments_bt)
    windowed = dataclasses.replace(
        mask_spec,
        queries=dataclasses.replace(mask_spec.queries, global_bt=None),
        keys=dataclasses.replace(info, segments_bt=others, global_bt=None),
    )
    everywhere = Everywhere(
        collect(qkv.k_bsgk),
        collect(qkv.v_bsgk),
        globals_,
        lambda queries, keys: MaskSpec(queries, keys, mask_spec.causal).mask_b1ts(),
    )
    bands = [Band(qkv.k_bsgk, qkv.v_bsgk, mask_spec.locality)]
    y_bthk = banded_attention(
        qkv.q_bthk, bands, windowed, everywhere=everywhere, dropout_key=keys[0], **options
    )
    of_globals = _in_memory(
        global_qkv._replace(q_bthk=collect(global_qkv.q_bthk)),
        MaskSpec(globals_, info, mask_spec.causal),
        dropout_key=keys[1],
        **options,
    )
    return y_bthk.at[jnp.arange(rows)[:, None], columns_bx].set(of_globals, mode="drop")


def _in_memory(qkv: QKV, mask_spec: MaskSpec, *, bias: ScoreBias | None, scale, **options) -> Array:
    """`dot_attention` of few queries and all keys: the scores fit into memory."""
    bias_bhts = None
    if bias is not None:
        bias_bhts = bias(None, mask_spec.queries.positions_bt, mask_spec.keys.positions_bt)
    given = dict(mask_b1ts=mask_spec.mask_b1ts(), bias_bhts=bias_bhts, scale=scale)
    return dot_attention(*qkv, **given, **options)


def _in_full(qkv: QKV, global_qkv: QKV, mask_spec: MaskSpec, keys: tuple, options: dict) -> Array:
    """Both passes for all tokens: quadratic time, linear memory."""
    y_bthk = flash_attention(*qkv, mask_spec, dropout_key=keys[0], **options)
    without_window = dataclasses.replace(mask_spec, locality=None)
    of_globals = flash_attention(*global_qkv, without_window, dropout_key=keys[1], **options)
    return jnp.where(mask_spec.queries.global_bt[:, :, None, None], of_globals, y_bthk)
