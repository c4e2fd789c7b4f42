"""Attention: a pure function of queries, keys and values, and the module that projects them."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.layers import Dense, apply_together, dropout
from model.positions import rope, rope_frequencies
from model.sharding import constrain

NEVER = -1e30  # a score that softmax turns into exactly zero, finite so that no gradient is NaN


def dot_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    *,
    mask_b1ts: Array | None = None,
    bias_bhts: Array | None = None,
    scale: float = 1.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Exact softmax attention with all scores in memory: the reference for every other kind.

    Query head h reads key/value head h // (H / G). Softmax runs in float32. A query that may
    look at nothing gets zeros.
    """
    groups, heads = k_bsgk.shape[2], q_bthk.shape[2]
    if groups < heads:
        k_bsgk = jnp.repeat(k_bsgk, heads // groups, axis=2)
        v_bsgk = jnp.repeat(v_bsgk, heads // groups, axis=2)
    # In this order of axes no product, forward or backward, transposes a matrix of size T x S.
    q_bhtk = jnp.moveaxis(q_bthk, 2, 1) * jnp.asarray(scale, q_bthk.dtype)
    k_bhks, v_bhks = jnp.moveaxis(k_bsgk, 1, 3), jnp.moveaxis(v_bsgk, 1, 3)
    scores_bhts = jnp.einsum("bhtk,bhks->bhts", q_bhtk, k_bhks, preferred_element_type=jnp.float32)
    weights_bhts, total_bht1 = _unnormalised_softmax(scores_bhts, mask_b1ts, bias_bhts)
    if dropout_rate:
        weights_bhts = dropout(weights_bhts, dropout_rate, dropout_key)
    y_bhtk = jnp.einsum("bhts,bhks->bhtk", weights_bhts.astype(v_bhks.dtype), v_bhks)
    y_bhtk = _normalised(y_bhtk, total_bht1, mask_b1ts)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bsgk.dtype)


def cached_attention(
    q_bthk: Array,
    k_bgks: Array,
    v_bgsk: Array,
    *,
    mask_b1ts: Array,
    bias_bhts: Array | None = None,
    scale: float = 1.0,
) -> Array:
    """The same for few queries and many remembered keys and values, laid out as LayerCache is.

    Reading them is nearly all of the work, so they are read as they lie: the query heads that
    share a key/value head count as more queries to it, and nothing is copied or repeated.
    """
    batch, queries, heads, head_size = q_bthk.shape
    groups, slots = k_bgks.shape[1], k_bgks.shape[3]
    q_bhtk = jnp.moveaxis(q_bthk, 2, 1) * jnp.asarray(scale, q_bthk.dtype)
    q_bgnk = q_bhtk.reshape(batch, groups, -1, head_size)  # N: H / G heads times T queries
    scores_bgns = jnp.einsum("bgnk,bgks->bgns", q_bgnk, k_bgks, preferred_element_type=jnp.float32)
    scores_bhts = scores_bgns.reshape(batch, heads, queries, slots)
    weights_bhts, total_bht1 = _unnormalised_softmax(scores_bhts, mask_b1ts, bias_bhts)
    weights_bgns = weights_bhts.reshape(scores_bgns.shape).astype(v_bgsk.dtype)
    y_bgnk = jnp.einsum("bgns,bgsk->bgnk", weights_bgns, v_bgsk)
    y_bhtk = _normalised(y_bgnk.reshape(q_bhtk.shape), total_bht1, mask_b1ts)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bgsk.dtype)


def _unnormalised_softmax(
    scores_bhts: Array, mask_b1ts: Array | None, bias_bhts: Array | None
) -> tuple[Array, Array]:
    """Weights, and the total to divide by, (B, H, T, 1)."""
    if bias_bhts is not None:
        scores_bhts += bias_bhts
    if mask_b1ts is not None:
        scores_bhts = jnp.where(mask_b1ts, scores_bhts, NEVER)
    largest_bht1 = jax.lax.stop_gradient(scores_bhts.max(axis=-1, keepdims=True))
    weights_bhts = jnp.exp(scores_bhts - largest_bht1)
    return weights_bhts, weights_bhts.sum(axis=-1, keepdims=True)


def _normalised(y_bhtk: Array, total_bht1: Array, mask_b1ts: Array | None) -> Array:
    """Divides after the sum over S rather than before, which is K / S of the work."""
    y_bhtk = y_bhtk.astype(jnp.float32) / total_bht1
    if mask_b1ts is not None:
        y_bhtk = jnp.where(mask_b1ts.any(axis=-1, keepdims=True), y_bhtk, 0.0)
    return y_bhtk


@flax.struct.dataclass
class LayerCache:
    """What one block remembers between decoding calls; a slot a token."""

    key_bgks: Array
    value_bgsk: Array
    # Keys and values of the source, filled by the call that is given it; None without a source.
    cross_key_bgks: Array | None = None
    cross_value_bgsk: Array | None = None


def as_cached(k_bsgk: Array, v_bsgk: Array) -> tuple[Array, Array]:
    """Keys and values in the order of axes in which `cached_attention` reads them."""
    return jnp.moveaxis(k_bsgk, 1, 3), jnp.moveaxis(v_bsgk, 1, 2)


def write(buffer: Array, new: Array, index: Array, axis: int) -> Array:
    """The buffer with `new` in the slots from `index` on: one number, or one for each row."""
    if index.ndim:
        rows = jax.vmap(write, in_axes=(0, 0, 0, None))
        return rows(buffer, new, index, axis - 1)
    return jax.lax.dynamic_update_slice_in_dim(buffer, new.astype(buffer.dtype), index, axis)


class Attention(nn.Module):
    """Projects to heads, attends, projects back. Self-attention unless `keys_values` are given."""

    config: TransformerConfig
    deterministic: bool

    def setup(self):
        config = self.config
        query = ((config.heads, config.head_size), ("width", "heads", "head_size"))
        key = ((config.kv_heads, config.head_size), ("width", "kv_heads", "head_size"))
        # Without the division by sqrt(K), queries start that much smaller (as in T5).
        self.query = Dense(
            config, *query, init_scale=1.0 if config.attention_scale else 1 / config.head_size
        )
        self.key = Dense(config, *key)
        self.value = Dense(config, *key)
        self.out = Dense(config, (config.width,), ("heads", "head_size", "width"), inputs=2)

    def project_source(self, source_bsd: Array) -> tuple[Array, Array]:
        return tuple(apply_together(source_bsd, self.key, self.value))

    def __call__(
        self,
        x_btd: Array,
        *,
        mask_b1ts: Array,
        bias_bhts: Array | None = None,
        rope_positions_bt: Array | None = None,
        keys_values: tuple[Array, Array] | None = None,
    ) -> Array:
        """Over x itself, or over `keys_values` (B, S, G, K) that come ready-made."""
        q_bthk, k_bsgk, v_bsgk = self._project(x_btd, rope_positions_bt, keys_values)
        drop = self.config.dropout_attention and not self.deterministic
        y_bthk = dot_attention(
            q_bthk,
            k_bsgk,
            v_bsgk,
            mask_b1ts=mask_b1ts,
            bias_bhts=bias_bhts,
            scale=self._scale,
            dropout_rate=self.config.dropout_attention if drop else 0.0,
            dropout_key=self.make_rng("dropout") if drop else None,
        )
        return self.out(y_bthk)

    def remembering(
        self,
        x_btd: Array,
        cached: tuple[Array, Array],
        cache_index: Array,
        *,
        mask_b1ts: Array,
        bias_bhts: Array | None = None,
        rope_positions_bt: Array | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Over what is cached and x itself, whose keys and values are written there first."""
        q_bthk, *new = self._project(x_btd, rope_positions_bt)
        new_k_bgkt, new_v_bgtk = as_cached(*new)
        k_bgks = write(cached[0], new_k_bgkt, cache_index, axis=3)
        v_bgsk = write(cached[1], new_v_bgtk, cache_index, axis=2)
        given = dict(mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, scale=self._scale)
        return self.out(cached_attention(q_bthk, k_bgks, v_bgsk, **given)), (k_bgks, v_bgsk)

    def recalling(self, x_btd: Array, cached: tuple[Array, Array], *, mask_b1ts: Array) -> Array:
        """Over what is cached alone: the source, in cross-attention."""
        q_bthk, k_bgks, v_bgsk = self._project(x_btd, None, cached)
        y_bthk = cached_attention(q_bthk, k_bgks, v_bgsk, mask_b1ts=mask_b1ts, scale=self._scale)
        return self.out(y_bthk)

    def _project(
        self,
        x_btd: Array,
        rope_positions_bt: Array | None,
        keys_values: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array, Array]:
        if keys_values is not None:
            q_bthk, keys, values = self.query(x_btd), *keys_values
        else:
            q_bthk, keys, values = apply_together(x_btd, self.query, self.key, self.value)
        if rope_positions_bt is not None:
            frequencies = rope_frequencies(self.config)
            q_bthk = rope(q_bthk, rope_positions_bt, frequencies)
            keys = rope(keys, rope_positions_bt, frequencies)
        return constrain(q_bthk, "batch", "length", "heads", None), keys, values

    @property
    def _scale(self) -> float:
        return self.config.head_size**-0.5 if self.config.attention_scale else 1.0
