"""The module that projects to heads, attends in one of the kinds, and projects back."""

import dataclasses
import functools
from collections.abc import Sequence

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.kernels.attend import (
    attend,
    attend_to_source,
    feature_map,
    near,
    score_scale,
    seen_by,
    written_out,
)
from model.kernels.dot import Heads, cached_attention
from model.kernels.hierarchical import mean_scores
from model.kernels.linear import FeatureMap, Sums, slot_attention, summed_attention
from model.kinds import SUMMED
from model.layers import Dense, apply_together
from model.masks import Sight
from model.positions import ScoreBias, rope, rope_frequencies, sinusoidal
from model.sharding import constrain


@flax.struct.dataclass
class Surroundings:
    """What every block of a stack sees alike: who sees whom, biases, the source."""

    sight: Sight
    bias: ScoreBias | None = None
    # The same two written out, once for all layers, where some kind needs them so.
    mask_b1ts: Array | None = None
    bias_bhts: Array | None = None
    rope_positions_bt: Array | None = None
    source_bsd: Array | None = None
    cross_sight: Sight | None = None
    cache_slot: Array | None = None  # where in the cache this call's tokens go
    directions_mk: Array | None = None  # of random features, for all layers alike


@flax.struct.dataclass
class LayerCache:
    """What one block remembers between decoding calls: a slot a token, or sums over all of them."""

    key_bgks: Array | None = None
    value_bgsk: Array | None = None
    sums: Sums | None = None
    # Of longformer, what its global tokens see through.
    global_key_bgks: Array | None = None
    global_value_bgsk: Array | None = None
    # Keys and values of the source, filled by the call that is given it; None without a source.
    cross_key_bgks: Array | None = None
    cross_value_bgsk: Array | None = None

    def with_source(self, k_bsgk: Array, v_bsgk: Array) -> "LayerCache":
        k_bgks, v_bgsk = as_cached(k_bsgk, v_bsgk)
        return self.replace(cross_key_bgks=k_bgks, cross_value_bgsk=v_bgsk)


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
    """Projects to heads, attends, projects back: over itself, or over a source."""

    config: TransformerConfig
    kind: str
    deterministic: bool
    cross: bool = False

    def setup(self):
        config = self.config
        dense = functools.partial(Dense, config, matmul=config.matmul)
        query = ((config.heads, config.head_size), ("width", "heads", "head_size"))
        key = ((config.kv_heads, config.head_size), ("width", "kv_heads", "head_size"))
        # Without the division by sqrt(K), queries start that much smaller (as in T5).
        self.query = dense(
            *query, init_scale=1.0 if config.attention_scale else 1 / config.head_size
        )
        self.key = dense(*key)
        self.value = dense(*key)
        self.out = dense((config.width,), ("heads", "head_size", "width"), inputs=2)
        if config.has_global_heads and not self.cross:
            # In every layer of a pattern, so that all layers have the same parameters.
            self.global_query = dense(*query)
            self.global_key = dense(*key)
            self.global_value = dense(*key)
        if config.position == "transformer_xl" and not self.cross:
            self.distance_key = dense(*query, bias=False)
            self.content_bias = self._vector_of_heads("content_bias")
            self.distance_bias = self._vector_of_heads("distance_bias")

    def __call__(self, x_btd: Array, around: Surroundings) -> Array:
        """Self-attention over all of x."""
        general, remembered = None, None
        if self.kind == "longformer":
            general = self._project_globally(x_btd, around)
        elif self.kind == "recurrent":  # the same values, but they are not learned through
            remembered = self._project(jax.lax.stop_gradient(x_btd), around)
        y_bthk = attend(
            self.kind,
            self.config,
            self._project(x_btd, around),
            around.sight,
            bias=self._bias(around, distances=self._furthest(x_btd.shape[1])),
            mask_b1ts=around.mask_b1ts,
            bias_bhts=around.bias_bhts,
            general=general,
            remembered=remembered,
            features=self._features(around),
            **self._options(),
        )
        return self.out(y_bthk)

    def over_source(
        self, x_btd: Array, keys_values: tuple[Array, Array], around: Surroundings
    ) -> Array:
        """Cross-attention over keys and values (B, S, G, K) from `project_source`."""
        q_bthk = constrain(self.query(x_btd), "batch", "length", "heads", None)
        y_bthk = attend_to_source(
            self.kind,
            Heads(q_bthk, *keys_values),
            around.cross_sight,
            features=self._features(around),
            **self._options(),
        )
        return self.out(y_bthk)

    def project_source(self, source_bsd: Array) -> tuple[Array, Array]:
        return tuple(apply_together(source_bsd, self.key, self.value))

    def remembering(
        self, x_btd: Array, cache: LayerCache, around: Surroundings
    ) -> tuple[Array, LayerCache]:
        """Over what is cached and x itself, whose keys and values are written there first."""

        def put(keys: Array, values: Array, new: Sequence[Array]) -> tuple[Array, Array]:
            new_k_bgkt, new_v_bgtk = as_cached(*new)
            return (
                write(keys, new_k_bgkt, around.cache_slot, axis=3),
                write(values, new_v_bgtk, around.cache_slot, axis=2),
            )

        q_bthk, *new = self._project(x_btd, around)
        kept = put(cache.key_bgks, cache.value_bgsk, new)
        cache = cache.replace(key_bgks=kept[0], value_bgsk=kept[1])
        mask_b1ts = around.mask_b1ts
        if self.kind in SUMMED:
            y_bthk = slot_attention(q_bthk, *kept, self._features(around), mask_b1ts)
            return self.out(y_bthk), cache
        sight = seen_by(self.kind, self.config, around.sight)
        if sight.near is not None:
            mask_b1ts &= sight.mask_b1ts()
        bias_bhts, change = around.bias_bhts, None
        if self.config.position == "transformer_xl":
            bias = self._bias(around, distances=mask_b1ts.shape[3])
            bias_bhts = written_out(bias, q_bthk, around.sight, self._scale)
        given = dict(bias_bhts=bias_bhts, scale=self._scale)
        if self.kind == "hierarchical":
            chunk = self.config.attention_chunk
            change = functools.partial(
                mean_scores, mask_b1ts=mask_b1ts, sight=around.sight, chunk=chunk
            )
        y_bthk = cached_attention(q_bthk, *kept, mask_b1ts=mask_b1ts, change=change, **given)
        if self.kind == "longformer":
            q_bthk, *new = self._project_globally(x_btd, around)
            kept = put(cache.global_key_bgks, cache.global_value_bgsk, new)
            cache = cache.replace(global_key_bgks=kept[0], global_value_bgsk=kept[1])
            of_globals = cached_attention(q_bthk, *kept, mask_b1ts=around.mask_b1ts, **given)
            is_global_bt11 = around.sight.queries.global_bt[:, :, None, None]
            y_bthk = jnp.where(is_global_bt11, of_globals, y_bthk)
        return self.out(y_bthk), cache

    def summing(
        self, x_btd: Array, cache: LayerCache, around: Surroundings
    ) -> tuple[Array, LayerCache]:
        """Over all that sums remember and x itself, which they then remember too."""
        heads, features = self._project(x_btd, around), self._features(around)
        sight = dataclasses.replace(around.sight, keys=around.sight.queries)
        y_bthk, sums = summed_attention(*heads, features, sight, sums=cache.sums)
        return self.out(y_bthk), cache.replace(sums=sums)

    def recalling(self, x_btd: Array, cached: tuple[Array, Array], around: Surroundings) -> Array:
        """Over what is cached alone: the source, in cross-attention."""
        q_bthk = constrain(self.query(x_btd), "batch", "length", "heads", None)
        mask_b1ts = around.cross_sight.mask_b1ts()
        if self.kind in SUMMED:
            return self.out(slot_attention(q_bthk, *cached, self._features(around), mask_b1ts))
        y_bthk = cached_attention(q_bthk, *cached, mask_b1ts=mask_b1ts, scale=self._scale)
        return self.out(y_bthk)

    def _project(self, x_btd: Array, around: Surroundings) -> Heads:
        return self._heads(x_btd, around, self.query, self.key, self.value)

    def _project_globally(self, x_btd: Array, around: Surroundings) -> Heads:
        """What the global tokens of a longformer see through."""
        layers = self.global_query, self.global_key, self.global_value
        return self._heads(x_btd, around, *layers)

    def _heads(self, x_btd: Array, around: Surroundings, *layers: Dense) -> Heads:
        q_bthk, k_bsgk, v_bsgk = apply_together(x_btd, *layers)
        if around.rope_positions_bt is not None:
            frequencies = rope_frequencies(self.config)
            q_bthk = rope(q_bthk, around.rope_positions_bt, frequencies)
            k_bsgk = rope(k_bsgk, around.rope_positions_bt, frequencies)
        if self.config.position == "transformer_xl":
            q_bthk += self.content_bias.astype(q_bthk.dtype)
        return Heads(constrain(q_bthk, "batch", "length", "heads", None), k_bsgk, v_bsgk)

    def _features(self, around: Surroundings) -> FeatureMap | None:
        return feature_map(self.config, self.kind, around.directions_mk)

    def _bias(self, around: Surroundings, distances: int) -> ScoreBias | None:
        """What is added to scores, for keys up to so many positions back."""
        if self.config.position != "transformer_xl":
            return around.bias
        waves_btd = sinusoidal(jnp.arange(distances)[None], self.config.width)
        return ScoreBias(
            "transformer_xl",
            self.distance_key(waves_btd)[0],
            # Queries come with the content's bias, and meet distances with their own instead.
            shift_hk=(self.distance_bias - self.content_bias) * self._scale,
        )

    def _furthest(self, length: int) -> int:
        """How many distances a query can be from a key that it sees, 0 among them."""
        is_near = near(self.config, self.kind)
        return length if is_near is None else min(is_near.reach[0] + 1, length)

    def _options(self) -> dict:
        drop = self.config.dropout_attention and not self.deterministic
        return dict(
            scale=self._scale,
            dropout_rate=self.config.dropout_attention if drop else 0.0,
            dropout_key=self.make_rng("dropout") if drop else None,
        )

    def _vector_of_heads(self, name: str) -> Array:
        return self.param(
            name,
            nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "head_size")),
            (self.config.heads, self.config.head_size),
            jnp.dtype(self.config.param_dtype),
        )

    @property
    def _scale(self) -> float:
        return score_scale(self.config)
