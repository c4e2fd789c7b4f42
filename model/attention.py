"""Attention: a pure function of queries, keys and values, and the module that projects them."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.layers import Dense, apply_together, dropout
from model.positions import rope
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
    if bias_bhts is not None:
        scores_bhts += bias_bhts
    if mask_b1ts is not None:
        scores_bhts = jnp.where(mask_b1ts, scores_bhts, NEVER)
    largest_bht1 = jax.lax.stop_gradient(scores_bhts.max(axis=-1, keepdims=True))
    weights_bhts = jnp.exp(scores_bhts - largest_bht1)
    total_bht1 = weights_bhts.sum(axis=-1, keepdims=True)
    if dropout_rate:
        weights_bhts = dropout(weights_bhts, dropout_rate, dropout_key)
    y_bhtk = jnp.einsum("bhts,bhks->bhtk", weights_bhts.astype(v_bhks.dtype), v_bhks)
    # Softmax divides by the total; doing it here, after the sum over S, is K / S of the work.
    y_bhtk = y_bhtk.astype(jnp.float32) / total_bht1
    if mask_b1ts is not None:
        y_bhtk = jnp.where(mask_b1ts.any(axis=-1, keepdims=True), y_bhtk, 0.0)
    return jnp.moveaxis(y_bhtk, 1, 2).astype(v_bsgk.dtype)


@flax.struct.dataclass
class LayerCache:
    """What one block remembers between decoding calls; a slot a token. Stacked over layers."""

    key_bsgk: Array
    value_bsgk: Array
    # Keys and values of the source, filled by the call that is given it; None without a source.
    cross_key_bsgk: Array | None = None
    cross_value_bsgk: Array | None = None


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
        mask_b1ts: Array | None,
        bias_bhts: Array | None = None,
        rope_positions_bt: Array | None = None,
        keys_values: tuple[Array, Array] | None = None,
        cached: tuple[Array, Array] | None = None,
        cache_index: Array | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """The output, and the keys and values that were attended to.

        `keys_values` come ready-made in cross-attention. `cached` are buffers into which this
        call's own keys and values are written at `cache_index` before attending to all of them.
        """
        config = self.config
        if keys_values is None:
            q_bthk, k_bsgk, v_bsgk = apply_together(x_btd, self.query, self.key, self.value)
        else:
            q_bthk, (k_bsgk, v_bsgk) = self.query(x_btd), keys_values
        if rope_positions_bt is not None:
            q_bthk = rope(q_bthk, rope_positions_bt, config.rope_theta)
            k_bsgk = rope(k_bsgk, rope_positions_bt, config.rope_theta)
        if cached is not None:
            start = (0, cache_index, 0, 0)
            k_bsgk = jax.lax.dynamic_update_slice(cached[0], k_bsgk, start)
            v_bsgk = jax.lax.dynamic_update_slice(cached[1], v_bsgk, start)
        q_bthk = constrain(q_bthk, "batch", "length", "heads", None)
        drop = config.dropout_attention and not self.deterministic
        y_bthk = dot_attention(
            q_bthk,
            k_bsgk,
            v_bsgk,
            mask_b1ts=mask_b1ts,
            bias_bhts=bias_bhts,
            scale=config.head_size**-0.5 if config.attention_scale else 1.0,
            dropout_rate=config.dropout_attention if drop else 0.0,
            dropout_key=self.make_rng("dropout") if drop else None,
        )
        return self.out(y_bthk), (k_bsgk, v_bsgk)
