"""Exact softmax attention with all scores in memory: the reference for every other kind."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from model.dropout import dropout
from model.masks import MaskSpec
from model.positions import ScoreBias

NEVER = -1e30  # a score that softmax turns into exactly zero, finite so that no gradient is NaN

SAVED_ATTENTION = "attended"  # model.remat=save_attention saves the arrays of this name


def attended(x: Array) -> Array:
    """Names an array that model.remat=save_attention saves for the backward pass."""
    return checkpoint_name(x, SAVED_ATTENTION)


class QKV(NamedTuple):
    """Queries, keys and values. Query head h reads key/value head h // (H / G)."""

    q_bthk: Array
    k_bsgk: Array
    v_bsgk: Array


def dot_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    *,
    mask_b1ts: Array | None = None,
    bias_bhts: Array | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    sinks_h: Array | None = None,
) -> Array:
    """Computes softmax(soft_cap(q k^T * scale) + bias) v over the keys where the mask is True.

    Softmax runs in float32. A query without visible keys gets zeros. `sinks_h` is one more score of
    each head, of a key whose value is zero. Returns (B, T, H, K).
    """
    groups, heads = k_bsgk.shape[2], q_bthk.shape[2]
    if groups < heads:
        k_bsgk = jnp.repeat(k_bsgk, heads // groups, axis=2)
        v_bsgk = jnp.repeat(v_bsgk, heads // groups, axis=2)
    # With this order of axes, no matmul of either pass transposes a T x S matrix.
    q_bhtk = jnp.moveaxis(q_bthk, 2, 1) * jnp.asarray(scale, q_bthk.dtype)
    k_bhks, v_bhks = jnp.moveaxis(k_bsgk, 1, 3), jnp.moveaxis(v_bsgk, 1, 3)
    scores_bhts = jnp.einsum("bhtk,bhks->bhts", q_bhtk, k_bhks, preferred_element_type=jnp.float32)
    weights_bhts, total_bht1 = unnormalised_softmax(scores_bhts, mask_b1ts, bias_bhts, cap, sinks_h)
    if dropout_rate:
        weights_bhts = dropout(weights_bhts, dropout_rate, dropout_key)
    # Named before the division, because the gradient of the total needs this value.
    y_bhtk = attended(jnp.einsum("bhts,bhks->bhtk", weights_bhts.astype(v_bhks.dtype), v_bhks))
    y_bhtk = normalised(y_bhtk, total_bht1, mask_b1ts)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bsgk.dtype)


def cached_attention(
    q_bthk: Array,
    k_bgks: Array,
    v_bgsk: Array,
    *,
    mask_b1ts: Array,
    bias_bhts: Array | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    sinks_h: Array | None = None,
    change_scores: Callable[[Array], Array] | None = None,
) -> Array:
    """`dot_attention` for few queries and many cached keys, in the layout of `KeyValues`.

    Reading the cache dominates the cost, so it is neither copied nor repeated: query heads that
    share a key/value head become more queries of that head. `change_scores` maps the raw scores
    (B, H, T, S) to those that are capped. Returns (B, T, H, K).
    """
    batch, queries, heads, head_size = q_bthk.shape
    groups, slots = k_bgks.shape[1], k_bgks.shape[3]
    q_bhtk = jnp.moveaxis(q_bthk, 2, 1) * jnp.asarray(scale, q_bthk.dtype)
    q_bgqk = q_bhtk.reshape(batch, groups, -1, head_size)
    scores_bgqs = jnp.einsum("bgqk,bgks->bgqs", q_bgqk, k_bgks, preferred_element_type=jnp.float32)
    scores_bhts = scores_bgqs.reshape(batch, heads, queries, slots)
    if change_scores is not None:
        scores_bhts = change_scores(scores_bhts)
    weights_bhts, total_bht1 = unnormalised_softmax(scores_bhts, mask_b1ts, bias_bhts, cap, sinks_h)
    weights_bgqs = weights_bhts.reshape(scores_bgqs.shape).astype(v_bgsk.dtype)
    y_bgqk = jnp.einsum("bgqs,bgsk->bgqk", weights_bgqs, v_bgsk)
    y_bhtk = normalised(y_bgqk.reshape(q_bhtk.shape), total_bht1, mask_b1ts)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bgsk.dtype)


def explicit_bias(bias: ScoreBias, q_bthk: Array, mask_spec: MaskSpec, scale: float) -> Array:
    """Returns the bias for every query and key, (B, H, T, S)."""
    scaled_bthk = q_bthk * jnp.asarray(scale, q_bthk.dtype)
    return bias(scaled_bthk, mask_spec.queries.positions_bt, mask_spec.keys.positions_bt)


def soft_cap(x: Array, cap: float) -> Array:
    """Returns cap * tanh(x / cap), which stays between -cap and cap; with a cap of 0, x."""
    if not cap:
        return x
    return (jnp.tanh(x.astype(jnp.float32) / cap) * cap).astype(x.dtype)


def unnormalised_softmax(
    scores_bhts: Array,
    mask_b1ts: Array | None,
    bias_bhts: Array | None,
    cap: float = 0.0,
    sinks_h: Array | None = None,
) -> tuple[Array, Array]:
    """Returns exp(scores - maximum), (B, H, T, S), and its sum over keys, (B, H, T, 1).

    Scores are capped before the bias is added, as in FlashAttention. The sum includes the sink.
    """
    scores_bhts = soft_cap(scores_bhts, cap)
    if bias_bhts is not None:
        scores_bhts += bias_bhts
    if mask_b1ts is not None:
        scores_bhts = jnp.where(mask_b1ts, scores_bhts, NEVER)
    largest_bht1 = scores_bhts.max(axis=-1, keepdims=True)
    if sinks_h is not None:
        sinks_h11 = sinks_h.astype(jnp.float32)[:, None, None]
        largest_bht1 = jnp.maximum(largest_bht1, sinks_h11)
    largest_bht1 = jax.lax.stop_gradient(largest_bht1)
    weights_bhts = jnp.exp(scores_bhts - largest_bht1)
    total_bht1 = weights_bhts.sum(axis=-1, keepdims=True)
    if sinks_h is not None:
        total_bht1 += jnp.exp(sinks_h11 - largest_bht1)
    return weights_bhts, total_bht1


def normalised(y_bhtk: Array, total_bht1: Array, mask_b1ts: Array | None) -> Array:
    """Divides by the sum of weights. After the sum over keys, K divisions suffice instead of S."""
    y_bhtk = y_bhtk.astype(jnp.float32) / total_bht1
    if mask_b1ts is not None:
        y_bhtk = jnp.where(mask_b1ts.any(axis=-1, keepdims=True), y_bhtk, 0.0)
    return y_bhtk
