"""Linear attention: weights are products of features, phi(q) phi(k).

    y_t = sum_s phi(q_t) phi(k_s) v_s / sum_s phi(q_t) phi(k_s)

The sums over keys are a `LinearState`, whose size does not depend on the number of keys
(Katharopoulos et al., 2020). Rows are read in chunks. Within a chunk, the weights are explicit and
masked; earlier chunks are in the state. A short row is one chunk.

The values of a head get a 1 behind them (W = K + 1), whose weighted sum is the divisor. A chunk has
U tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import NEVER, attended
from model.attention.interface import NO_SINKS, AttentionInputs, AttentionKind, KeyValues
from model.masks import PADDING, MaskSpec

if TYPE_CHECKING:
    from model.config import TransformerConfig

CHUNK = 128
# Logarithms are shifted so that the largest feature of keys, and of a query, is exp(HEADROOM). This
# uses float32's range above 1 too, because masked keys may have far larger weights than visible
# ones. The visible keys are lost if their sum is below SMALLEST, exp(-109) of the largest sum.
HEADROOM = 20.0
SMALLEST = 1e-30


class FeatureMap(NamedTuple):
    """Maps vectors (..., K) to non-negative features (..., M) in float32."""

    apply: Callable[[Array], Array]
    size: int
    are_logs: bool  # whether `apply` returns logarithms of features


class LinearState(NamedTuple):
    """The sums over the keys and values of the newest segment."""

    total_bgmw: Array  # sum of phi(k) v, and of phi(k), divided by exp(top)
    top_bgm: Array | None  # the largest logarithm of each feature, if `are_logs`
    segment_b: Array
    has_token_slots = False  # an added token cannot be removed or masked


class FeatureMapAttention(AttentionKind):
    """Base of kinds that apply a feature map and decode from a `LinearState`."""

    refused: ClassVar = {
        "bias": "it has no scores to add to",
        "relative": "it has no scores to add to",
        "dropout": "it has no weights to drop",
        "cap": "it has no scores to cap",
        "sinks": NO_SINKS,
    }

    def feature_map(self, config: "TransformerConfig", shared: Any) -> FeatureMap:
        """Returns the feature map; `shared` is the result of the method `shared`."""
        raise NotImplementedError

    def feature_count(self, config: "TransformerConfig") -> int:
        """Returns the number of features of a key, M."""
        raise NotImplementedError

    def _features(self, inputs: AttentionInputs) -> FeatureMap:
        return self.feature_map(inputs.config, inputs.shared)

    def attend(self, inputs: AttentionInputs) -> Array:
        return attended(linear_attention(*inputs.qkv, self._features(inputs), inputs.mask_spec)[0])

    def cross_attend(self, inputs: AttentionInputs) -> Array:
        return self.attend(inputs)

    def init_cache(self, config, batch: int, slots: int, *, keep_tokens: bool):
        if keep_tokens:
            return super().init_cache(config, batch, slots, keep_tokens=True)
        features = self.feature_map(config, self.shared(config, lambda: None))
        return empty_linear_state(batch, config.kv_heads, config.head_size, features)

    def decode(self, inputs: AttentionInputs, cache):
        features, context = self._features(inputs), inputs.context
        if isinstance(cache, LinearState):
            mask_spec = dataclasses.replace(context.mask_spec, keys=context.mask_spec.queries)
            return linear_attention(*inputs.qkv, features, mask_spec, state=cache)
        q_bthk, k_btgk, v_btgk = inputs.qkv
        cache = cache.write(k_btgk, v_btgk, context.cache_slot)
        y_bthk = slot_attention(
            q_bthk, cache.key_bgks, cache.value_bgsk, features, context.mask_b1ts
        )
        return y_bthk, cache

    def cross_decode(self, inputs: AttentionInputs, source: KeyValues) -> Array:
        mask_b1ts = inputs.mask_spec.mask_b1ts()
        return slot_attention(
            inputs.qkv.q_bthk,
            source.key_bgks,
            source.value_bgsk,
            self._features(inputs),
            mask_b1ts,
        )

    def pairs(self, config: "TransformerConfig", length: int, *, causal: bool) -> int:
        # Adding a token to the state and reading the state costs as much as M query-key pairs.
        return length * self.feature_count(config)

    def cross_pairs(self, config: "TransformerConfig", queries: int, keys: int) -> int:
        return queries * self.feature_count(config)


class Linear(FeatureMapAttention):
    name = "linear"
    description = "the kernel (elu(q) + 1)(elu(k) + 1), a recurrence in linear time"

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        if config.attention_multiplier:
            yield (
                f"model.attention_multiplier={config.attention_multiplier:g} multiplies scores, "
                "and model.attention=linear has none; set it to 0, or choose another kind"
            )

    def feature_map(self, config: "TransformerConfig", shared: Any) -> FeatureMap:
        return elu_plus_one(config.head_size)

    def feature_count(self, config: "TransformerConfig") -> int:
        return config.head_size


def elu_plus_one(head_size: int) -> FeatureMap:
    """The feature map elu(x) + 1. As in the paper, x is not scaled."""
    return FeatureMap(lambda x: jax.nn.elu(x.astype(jnp.float32)) + 1, head_size, are_logs=False)


def empty_linear_state(rows: int, groups: int, head_size: int, features: FeatureMap) -> LinearState:
    """Returns the state before the first token."""
    shape = (rows, groups, features.size)
    return LinearState(
        total_bgmw=jnp.zeros((*shape, head_size + 1), jnp.float32),
        top_bgm=jnp.full(shape, NEVER, jnp.float32) if features.are_logs else None,
        segment_b=jnp.full(rows, PADDING, jnp.int32),
    )


def linear_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    features: FeatureMap,
    mask_spec: MaskSpec,
    *,
    state: LinearState | None = None,
    chunk: int = CHUNK,
) -> tuple[Array, LinearState]:
    """Attends to the keys of `mask_spec` and of `state`: output (B, T, H, K), next state.

    If `mask_spec` is causal, queries and keys must be the same columns. Query head h reads
    key/value head h // (H / G). A query without visible keys gets zeros. The state is float32.
    """
    rows, _, heads, head_size = q_bthk.shape
    groups = k_bsgk.shape[2]
    if state is None:
        state = empty_linear_state(rows, groups, head_size, features)
    q_bugrk = q_bthk.reshape(rows, -1, groups, heads // groups, head_size)
    tokens = _Tokens(q_bugrk, k_bsgk, v_bsgk, *_segments(mask_spec, rows))

    # The backward pass saves only the state between chunks: M * W numbers per chunk and group.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def read(state: LinearState, given: tuple[_Tokens, Array]) -> tuple[LinearState, Array]:
        return _read_chunk(state, *given, features)

    if max(q_bthk.shape[1], k_bsgk.shape[1]) <= chunk:
        state, y_bugrk = read(state, (tokens, mask_spec.mask_b1ts()[:, 0]))
        return y_bugrk.reshape(q_bthk.shape), state

    places_bt = None
    if not mask_spec.causal or mask_spec.keys.prefix_bt is not None:
        tokens, places_bt = _reading_order(tokens, mask_spec)
    length = tokens.k_bugk.shape[1]
    size = -(-length // -(-length // chunk))  # equal chunks need the least padding
    chunks = jax.tree.map(lambda x: _cut(x, size), tokens)
    state, y_ibugrk = jax.lax.scan(
        lambda state, tokens: read(state, (tokens, _earlier_of_segment(tokens))), state, chunks
    )
    y_bthk = jnp.moveaxis(y_ibugrk, 0, 1).reshape(rows, -1, heads, head_size)[:, :length]
    return y_bthk if places_bt is None else _rows_at(y_bthk, places_bt), state


def slot_attention(
    q_bthk: Array, k_bgks: Array, v_bgsk: Array, features: FeatureMap, mask_b1ts: Array
) -> Array:
    """Linear attention with explicit weights, to keys and values in the layout of `KeyValues`.

    Supports any mask, unlike a state, which cannot mask single keys. Returns (B, T, H, K).
    """
    batch, queries, _, head_size = q_bthk.shape
    groups, slots = v_bgsk.shape[1:3]
    q_btgrk = q_bthk.reshape(batch, queries, groups, -1, head_size)
    q_bgrtm = features.apply(q_btgrk.transpose(0, 2, 3, 1, 4))
    k_bgsm = features.apply(jnp.moveaxis(k_bgks, 2, 3))
    if features.are_logs:
        is_visible_bs = jnp.broadcast_to(mask_b1ts.any(axis=(1, 2)), (batch, slots))
        q_bgrtm, k_bgsm = _scaled(q_bgrtm, k_bgsm, _largest(k_bgsm, is_visible_bs))
    total_bgrtw = _explicit(q_bgrtm, k_bgsm, _with_one(v_bgsk), mask_b1ts[:, :, None])
    y_btgrk = _divided(total_bgrtw).transpose(0, 3, 1, 2, 4)
    return y_btgrk.reshape(q_bthk.shape).astype(v_bgsk.dtype)


class _Tokens(NamedTuple):
    """Columns in reading order, each with a query, a key, or both."""

    q_bugrk: Array
    k_bugk: Array
    v_bugk: Array
    query_segments_bu: Array
    key_segments_bu: Array  # PADDING where there is no key


def _earlier_of_segment(tokens: _Tokens) -> Array:
    """Returns the causal mask of a chunk, (B, U, U)."""
    columns = jnp.arange(tokens.k_bugk.shape[1])
    key_segments_b1u = tokens.key_segments_bu[:, None]
    mask_buu = tokens.query_segments_bu[:, :, None] == key_segments_b1u
    return mask_buu & (key_segments_b1u != PADDING) & (columns[:, None] >= columns)


def _read_chunk(
    state: LinearState, tokens: _Tokens, mask_buu: Array, features: FeatureMap
) -> tuple[LinearState, Array]:
    """Attends within a chunk and to the state before it: next state, output (B, U, G, R, K)."""
    key_segments_bu = tokens.key_segments_bu
    q_bgrum = features.apply(tokens.q_bugrk.transpose(0, 2, 3, 1, 4))
    k_bgum = features.apply(tokens.k_bugk.transpose(0, 2, 1, 3))
    v_bguw = _with_one(tokens.v_bugk.transpose(0, 2, 1, 3))

    last_b = _last_segment(key_segments_bu, state.segment_b)
    goes_on_b = last_b == state.segment_b
    is_key_bu = key_segments_bu != PADDING
    is_added_bu = is_key_bu & (key_segments_bu == last_b[:, None])
    before_bgmw, added_bgum, next_top_bgm = state.total_bgmw, k_bgum, None
    if features.are_logs:
        top_bgm = jnp.maximum(state.top_bgm, _largest(k_bgum, is_key_bu))
        before_bgmw = before_bgmw * jnp.exp(state.top_bgm - top_bgm)[..., None]
        # The next state has its own scale: a finished segment's largest features do not count.
        next_top_bgm = jnp.where(goes_on_b[:, None, None], state.top_bgm, NEVER)
        next_top_bgm = jnp.maximum(next_top_bgm, _largest(k_bgum, is_added_bu))
        added_bgum = _scaled_keys(k_bgum, next_top_bgm)
        q_bgrum, k_bgum = _scaled(q_bgrum, k_bgum, top_bgm)

    total_bgruw = _explicit(q_bgrum, k_bgum, v_bguw, mask_buu[:, None, None])
    continues_bu = tokens.query_segments_bu == state.segment_b[:, None]
    from_state_bgruw = jnp.einsum("bgrum,bgmw->bgruw", q_bgrum, before_bgmw)
    total_bgruw += jnp.where(continues_bu[:, None, None, :, None], from_state_bgruw, 0.0)

    added_bgum = jnp.where(is_added_bu[:, None, :, None], added_bgum, 0.0)
    # If the segment goes on, all keys of the chunk belong to it: both scales are equal.
    total_bgmw = jnp.einsum("bgum,bguw->bgmw", added_bgum, v_bguw)
    total_bgmw += jnp.where(goes_on_b[:, None, None, None], before_bgmw, 0.0)
    y_bugrk = _divided(total_bgruw).transpose(0, 3, 1, 2, 4).astype(tokens.v_bugk.dtype)
    return LinearState(total_bgmw, next_top_bgm, last_b), y_bugrk


def _last_segment(key_segments_bu: Array, otherwise_b: Array) -> Array:
    """Returns the segment of the last key, (B); padding does not end a segment."""
    columns = jnp.arange(key_segments_bu.shape[1])
    last_b = jnp.where(key_segments_bu != PADDING, columns, -1).max(axis=1)
    segment_b = jnp.take_along_axis(key_segments_bu, jnp.maximum(last_b, 0)[:, None], axis=1)[:, 0]
    return jnp.where(last_b >= 0, segment_b, otherwise_b)


def _largest(log_bgum: Array, counts_bu: Array) -> Array:
    """Returns each feature's largest logarithm over the keys in `counts_bu`, (B, G, M)."""
    log_bgum = jnp.where(counts_bu[:, None, :, None], log_bgum, NEVER)
    return jax.lax.stop_gradient(log_bgum).max(axis=2)


def _scaled(q_bgrum: Array, k_bgum: Array, top_bgm: Array) -> tuple[Array, Array]:
    """Returns scaled features from logarithms. The factors cancel in the final division.

    A feature of keys is divided by its largest value, and the same feature of queries multiplied
    by it. Then each query is divided by its largest feature. So no feature that matters to a query
    underflows.
    """
    q_bgrum = q_bgrum + top_bgm[:, :, None, None]
    own_top = jax.lax.stop_gradient(q_bgrum).max(axis=-1, keepdims=True)
    return jnp.exp(q_bgrum - own_top + HEADROOM), _scaled_keys(k_bgum, top_bgm)


def _scaled_keys(k_bgum: Array, top_bgm: Array) -> Array:
    k_bgum = k_bgum - top_bgm[:, :, None]
    k_bgum = jnp.where(k_bgum > 0, 0.0, k_bgum)  # keys outside of `top` may exceed it
    return jnp.exp(k_bgum + HEADROOM)


def _explicit(q_bgrtm: Array, k_bgsm: Array, v_bgsw: Array, mask: Array) -> Array:
    """Returns the weighted sums over the keys where the mask is True, (B, G, R, T, W)."""
    weights_bgrts = jnp.einsum("bgrtm,bgsm->bgrts", q_bgrtm, k_bgsm)
    return jnp.einsum("bgrts,bgsw->bgrtw", jnp.where(mask, weights_bgrts, 0.0), v_bgsw)


def _with_one(v: Array) -> Array:
    """Appends a 1 to the values (..., K), so that its weighted sum is the sum of weights."""
    return jnp.pad(v.astype(jnp.float32), ((0, 0),) * 3 + ((0, 1),), constant_values=1.0)


def _divided(total: Array) -> Array:
    """Divides sums of values by the sum of weights; 0 where that is 0."""
    y, weight = total[..., :-1], total[..., -1:]
    is_something = weight > SMALLEST
    weight = jnp.where(is_something, weight, 1.0)
    # Divides by the weight's value and then by 1: the gradient of a division contains the square
    # of the divisor, which may overflow or underflow float32 where the divisor does not.
    value = jax.lax.stop_gradient(weight)
    return jnp.where(is_something, y / value / (weight / value), 0.0)


def _segments(mask_spec: MaskSpec, rows: int) -> tuple[Array, Array]:
    """Returns the segments of queries (B, T) and keys (B, S) for every row of the batch."""
    segments = mask_spec.queries.segments_bt, mask_spec.keys.segments_bt
    return tuple(jnp.broadcast_to(x, (rows, x.shape[1])) for x in segments)


def _reading_order(tokens: _Tokens, mask_spec: MaskSpec) -> tuple[_Tokens, Array]:
    """Sorts columns for causal attention; returns them and the places of the queries.

    Each segment starts with the keys that all its queries see: all of them, or a prefix. Queries
    follow, with the remaining keys. So one causal pass computes two-sided attention, a prefix, and
    a source with other columns.
    """
    q_bugrk, k_bugk, v_bugk, query_segments_bt, key_segments_bs = tokens
    rows, queries = query_segments_bt.shape
    keys = key_segments_bs.shape[1]
    if mask_spec.causal:
        is_first_bs = jnp.broadcast_to(mask_spec.keys.prefix_bt, (rows, keys)).astype(bool)
        late_keys, late_values = k_bugk, v_bugk
        late_segments_bt = jnp.where(is_first_bs, PADDING, key_segments_bs)
    else:
        is_first_bs = jnp.ones((rows, keys), bool)
        late_keys, late_values = (
            jnp.zeros((rows, queries, *x.shape[2:]), x.dtype) for x in (k_bugk, v_bugk)
        )
        late_segments_bt = jnp.full((rows, queries), PADDING)
    early_queries = jnp.zeros((rows, keys, *q_bugrk.shape[2:]), q_bugrk.dtype)
    both = _Tokens(
        jnp.concatenate([early_queries, q_bugrk], axis=1),
        jnp.concatenate([k_bugk, late_keys], axis=1),
        jnp.concatenate([v_bugk, late_values], axis=1),
        jnp.pad(query_segments_bt, ((0, 0), (keys, 0)), constant_values=PADDING),
        jnp.concatenate([jnp.where(is_first_bs, key_segments_bs, PADDING), late_segments_bt], 1),
    )
    # The sort is stable, so early keys stay before the queries of their segment.
    segments_bu = jnp.concatenate([key_segments_bs, query_segments_bt], axis=1)
    order_bu = jnp.argsort(segments_bu, axis=1, stable=True)
    places_bu = jnp.argsort(order_bu, axis=1)
    return jax.tree.map(lambda x: _rows_at(x, order_bu), both), places_bu[:, keys:]


def _rows_at(x: Array, places_bu: Array) -> Array:
    """Selects the columns at these places in each row of the batch."""
    return jax.vmap(lambda row, places: row[places])(x, places_bu)


def _cut(x: Array, size: int) -> Array:
    """(B, U, ...) as chunks (I, B, size, ...); the last one is padded with zeros."""
    count = -(-x.shape[1] // size)
    x = jnp.pad(x, ((0, 0), (0, count * size - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(len(x), count, size, *x.shape[2:]), 1, 0)
