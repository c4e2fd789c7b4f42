"""Additive scores, v tanh(q + k), with a learned vector v for each head (Bahdanau et al., 2015).

Every pair of a query and a key has K numbers before their sum, so queries are processed in blocks
and the backward pass computes these numbers again.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import (
    attended,
    explicit_bias,
    normalised,
    unnormalised_softmax,
)
from model.attention.interface import NO_SINKS, AttentionInputs, AttentionKind, KeyValues
from model.dropout import dropout

if TYPE_CHECKING:
    from model.config import TransformerConfig

LARGEST = 1 << 22  # numbers of a block of pairs


class Additive(AttentionKind):
    name = "additive"
    description = "Bahdanau's scores: a layer with tanh instead of a dot product"
    refused: ClassVar = {"relative": "its scores are no dot products", "sinks": NO_SINKS}
    score_vector = True

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        if config.position == "rope":
            yield (
                "model.position=rope encodes distances in dot products, but the scores of "
                "model.attention=additive are none; choose another position, or another kind"
            )
        if config.attention_multiplier:
            yield (
                f"model.attention_multiplier={config.attention_multiplier:g} multiplies dot "
                "products, but the scores of model.attention=additive are none; set it to 0"
            )

    def attend(self, inputs: AttentionInputs) -> Array:
        bias_bhts = None
        if inputs.bias is not None:
            bias_bhts = explicit_bias(
                inputs.bias, inputs.qkv.q_bthk, inputs.mask_spec, inputs.scale
            )
        return _attend(inputs, *inputs.qkv[1:], inputs.mask_spec.mask_b1ts(), bias_bhts)

    def cross_attend(self, inputs: AttentionInputs) -> Array:
        return _attend(inputs, *inputs.qkv[1:], inputs.mask_spec.mask_b1ts())

    def decode(self, inputs: AttentionInputs, cache: KeyValues) -> tuple[Array, KeyValues]:
        cache = cache.write(inputs.qkv.k_bsgk, inputs.qkv.v_bsgk, inputs.context.cache_slot)
        keys_and_values = cache.token_order()
        mask_b1ts, bias_bhts = inputs.context.mask_b1ts, inputs.bias_bhts
        return _attend(inputs, *keys_and_values, mask_b1ts, bias_bhts), cache

    def cross_decode(self, inputs: AttentionInputs, source: KeyValues) -> Array:
        return _attend(inputs, *source.token_order(), inputs.mask_spec.mask_b1ts())


def _attend(
    inputs: AttentionInputs,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_b1ts: Array,
    bias_bhts: Array | None = None,
) -> Array:
    """Computes softmax(v tanh(q + k) + bias) over the keys where the mask is True, (B, T, H, K)."""
    q_bthk = inputs.qkv.q_bthk
    copies = q_bthk.shape[2] // k_bsgk.shape[2]
    k_bshk, v_bshk = (jnp.repeat(x, copies, axis=2) for x in (k_bsgk, v_bsgk))
    scores_bhts = additive_scores(q_bthk, k_bshk, inputs.score_vector_hk)
    weights_bhts, total_bht1 = unnormalised_softmax(scores_bhts, mask_b1ts, bias_bhts, inputs.cap)
    if inputs.dropout_rate:
        weights_bhts = dropout(weights_bhts, inputs.dropout_rate, inputs.dropout_key)
    y_bhtk = jnp.einsum("bhts,bshk->bhtk", weights_bhts.astype(v_bshk.dtype), v_bshk)
    y_bhtk = normalised(attended(y_bhtk), total_bht1, mask_b1ts)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bshk.dtype)


def additive_scores(q_bthk: Array, k_bshk: Array, vector_hk: Array) -> Array:
    """Returns v tanh(q + k) of every query and key, float32 (B, H, T, S)."""
    batch, queries, heads, size = q_bthk.shape
    vector_hk, k_bshk = vector_hk.astype(jnp.float32), k_bshk.astype(jnp.float32)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def score(q_bthk: Array) -> Array:
        pairs_btshk = jnp.tanh(q_bthk[:, :, None].astype(jnp.float32) + k_bshk[:, None])
        return jnp.einsum("btshk,hk->bhts", pairs_btshk, vector_hk)

    block = max(1, LARGEST // max(batch * k_bshk.shape[1] * heads * size, 1))
    if block >= queries:
        return score(q_bthk)
    count = -(-queries // block)
    q_bthk = jnp.pad(q_bthk, ((0, 0), (0, count * block - queries), (0, 0), (0, 0)))
    q_ibthk = jnp.moveaxis(q_bthk.reshape(batch, count, block, heads, size), 1, 0)
    scores_ibhts = jax.lax.map(score, q_ibthk)
    scores_bhits = jnp.moveaxis(scores_ibhts, 0, 2)
    return scores_bhits.reshape(batch, heads, -1, k_bshk.shape[1])[:, :, :queries]
