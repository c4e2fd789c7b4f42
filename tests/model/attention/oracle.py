"""Every kind of attention written out in full, one pair of query and key after another.

Nothing here knows blocks, scans or caches: masks come from loops over positions, and every weight
is in memory. It is the reference for the kernels of model/attention.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array

from model.attention import KINDS
from model.attention.dot_attention import QKV
from model.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Rows:
    """Position, segment (0: padding), prefix flag and global flag of each token."""

    positions: np.ndarray
    segments: np.ndarray
    prefix: np.ndarray
    is_global: np.ndarray


def may_see(rows: Rows, r: int, query: int, key: int, causal: bool) -> bool:
    """The rule that all kinds share."""
    if rows.segments[r, key] == 0 or rows.segments[r, query] != rows.segments[r, key]:
        return False
    is_behind = rows.positions[r, key] <= rows.positions[r, query]
    return not causal or is_behind or rows.prefix[r, key]


def is_local(kind: str, config: TransformerConfig, query: int, key: int) -> bool:
    """Whether a kind's locality lets a query see a key, by their positions."""
    distance, first = abs(query - key), query - query % config.attention_chunk
    match kind:
        case "local":
            return distance < config.attention_window
        case "longformer":
            gap = config.attention_dilation
            return distance % gap == 0 and distance // gap < config.attention_window
        case "chunked":
            last = first + config.attention_chunk - 1
            return first - config.attention_overlap <= key <= last + config.attention_overlap
        case "recurrent":
            return key >= first - config.attention_memory
    locality = KINDS[kind].locality(config)  # of a kind that this file does not know
    return locality is None or bool(locality(query, key))


def pairs(rows: Rows, rule) -> np.ndarray:
    """`rule` of each (row, query, key), as (B, 1, T, T)."""
    count, length = rows.positions.shape
    return np.array(
        [
            [[rule(r, t, s) for s in range(length)] for t in range(length)]
            for r in range(count)
        ]
    )[:, None]  # fmt: skip


def explicit(
    kind: str,
    config: TransformerConfig,
    heads: QKV,
    rows: Rows,
    *,
    causal: bool,
    scale: float,
    bias_bhts: Array | float = 0.0,
    keep_bhts: Array | float = 1.0,
    global_qkv: QKV | None = None,
    memory_qkv: QKV | None = None,
    feature_map=None,
    vector_hk: Array | None = None,
    cap: float = 0.0,
    sinks_h: Array | None = None,
) -> Array:
    """The output (B, T, H, K) in float32; weights are multiplied by `keep_bhts` as by dropout."""
    allowed = pairs(rows, lambda r, t, s: may_see(rows, r, t, s, causal))
    locality = pairs(
        rows, lambda r, t, s: is_local(kind, config, rows.positions[r, t], rows.positions[r, s])
    )
    number = rows.positions // config.attention_chunk
    same_chunk = pairs(rows, lambda r, t, s: number[r, t] == number[r, s])

    if feature_map is not None:
        return masked_average(heads, allowed, scale, feature_map)
    scores = _products(heads) * scale
    if vector_hk is not None:
        scores = _additive(heads, vector_hk)
    if kind != "hierarchical":  # its scores become means first
        scores = _capped(scores, cap) + bias_bhts
    match kind:
        case "longformer":
            locality |= pairs(rows, lambda r, t, s: rows.is_global[r, t] or rows.is_global[r, s])
            wide = _capped(_products(global_qkv) * scale, cap) + bias_bhts
            of_globals = _average(_exp(wide, allowed), global_qkv.v_bsgk, keep_bhts)
            others = _average(_exp(scores, allowed & locality), heads.v_bsgk, keep_bhts)
            return jnp.where(rows.is_global[:, :, None, None], of_globals, others)
        case "recurrent":
            older = _products(heads._replace(k_bsgk=memory_qkv.k_bsgk)) * scale
            older = _capped(older, cap) + bias_bhts
            weights = _exp(jnp.where(same_chunk, scores, older), allowed & locality)
            total = weights.sum(axis=-1)
            parts = [(same_chunk, heads.v_bsgk), (~same_chunk, memory_qkv.v_bsgk)]
            return sum(
                _average(jnp.where(which, weights, 0), values, keep_bhts, total)
                for which, values in parts
            )
        case "hierarchical":
            of_one_text = pairs(rows, lambda r, t, s: may_see(rows, r, t, s, causal=False))
            together_bsu = (same_chunk & of_one_text)[:, 0].astype(np.float32)
            chunk_totals = jnp.einsum("bhts,bsu->bhtu", jnp.where(allowed, scores, 0), together_bsu)
            counts = np.einsum("bhts,bsu->bhtu", allowed.astype(np.float32), together_bsu)
            scores = jnp.where(same_chunk, scores, chunk_totals / np.maximum(counts, 1))
            scores = _capped(scores, cap)
    weights = _exp(scores, allowed & locality)
    total = weights.sum(axis=-1)
    if sinks_h is not None:  # a key of its own, whose value is zero
        total += jnp.exp(sinks_h)[:, None]
    return _average(weights, heads.v_bsgk, keep_bhts, total)


def masked_average(
    heads: QKV, mask: np.ndarray, scale: float, feature_map=None, vector_hk: Array | None = None
) -> Array:
    """Weights by softmax of the scores, or by products of features if there is a feature map."""
    if vector_hk is not None:
        return _average(_exp(_additive(heads, vector_hk), mask), heads.v_bsgk)
    if feature_map is None:
        return _average(_exp(_products(heads) * scale, mask), heads.v_bsgk)
    q, k = (feature_map(x.astype(jnp.float32)) for x in heads[:2])
    return _average(jnp.where(mask, _products(QKV(q, k, heads.v_bsgk)), 0), heads.v_bsgk)


def _products(heads: QKV) -> Array:
    """q k' of every head, (B, H, T, S)."""
    q, k = (x.astype(jnp.float32) for x in heads[:2])
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    return jnp.einsum("bthk,bshk->bhts", q, k, precision="highest")


def _additive(heads: QKV, vector_hk: Array) -> Array:
    """v tanh(q + k) of every head, one query after another, (B, H, T, S)."""
    q, k = (x.astype(jnp.float32) for x in heads[:2])
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    v = vector_hk.astype(jnp.float32)
    rows = [(jnp.tanh(q[:, t, None] + k) * v).sum(axis=-1) for t in range(q.shape[1])]
    return jnp.moveaxis(jnp.stack(rows, axis=1), 3, 1)


def _capped(scores: Array, cap: float) -> Array:
    """cap * tanh(scores / cap), by exponentials."""
    if not cap:
        return scores
    e = jnp.exp(-2 * jnp.abs(scores) / cap)
    return cap * jnp.sign(scores) * (1 - e) / (1 + e)


def _exp(scores: Array, mask: np.ndarray) -> Array:
    return jnp.where(mask, jnp.exp(jnp.where(mask, scores, 0)), 0)


def _average(weights: Array, values: Array, keep: Array | float = 1.0, total=None) -> Array:
    """Of values by weights; zeros where there is no weight at all."""
    total = weights.sum(axis=-1) if total is None else total
    values = jnp.repeat(values.astype(jnp.float32), weights.shape[1] // values.shape[2], axis=2)
    weighted_values = jnp.einsum("bhts,bshk->bthk", weights * keep, values, precision="highest")
    total = jnp.moveaxis(total, 1, 2)[..., None]
    return jnp.where(total > 0, weighted_values / jnp.where(total > 0, total, 1), 0)
