"""The module that projects to heads, attends in one of the kinds, and projects back."""

import dataclasses

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.kernels.banded import Band, banded_attention
from model.kernels.dot import cached_attention, dot_attention
from model.kernels.flash import flash_attention
from model.kinds import kind_of_cross_attention
from model.layers import Dense, apply_together
from model.masks import Near, Sight
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


@flax.struct.dataclass
class LayerCache:
    """What one block remembers between decoding calls; a slot a token."""

    key_bgks: Array
    value_bgsk: Array
    # Keys and values of the source, filled by the call that is given it; None without a source.
    cross_key_bgks: Array | None = None
    cross_value_bgsk: Array | None = None


def near(config: TransformerConfig, kind: str) -> Near | None:
    """What a kind takes to be near; None where it makes no difference to its mask."""
    match kind:
        case "local":
            return Near(window=config.attention_window)
        case "longformer":
            return Near(window=config.attention_window, dilation=config.attention_dilation)
        case "chunked":
            sides = dict(before=config.attention_overlap, after=config.attention_overlap)
            return Near(chunk=config.attention_chunk, **sides)
        case "recurrent":
            return Near(chunk=config.attention_chunk, before=config.attention_memory)
    return None


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
        query = ((config.heads, config.head_size), ("width", "heads", "head_size"))
        key = ((config.kv_heads, config.head_size), ("width", "kv_heads", "head_size"))
        # Without the division by sqrt(K), queries start that much smaller (as in T5).
        self.query = Dense(
            config, *query, init_scale=1.0 if config.attention_scale else 1 / config.head_size
        )
        self.key = Dense(config, *key)
        self.value = Dense(config, *key)
        self.out = Dense(config, (config.width,), ("heads", "head_size", "width"), inputs=2)
        if config.position == "transformer_xl" and not self.cross:
            self.distance_key = Dense(config, *query, bias=False)
            self.content_bias = self._vector_of_heads("content_bias")
            self.distance_bias = self._vector_of_heads("distance_bias")

    def __call__(self, x_btd: Array, around: Surroundings) -> Array:
        """Self-attention over all of x."""
        q_bthk, k_bsgk, v_bsgk = self._project(x_btd, around)
        match self.kind:
            case "dot":
                y_bthk = dot_attention(
                    q_bthk, k_bsgk, v_bsgk,
                    mask_b1ts=around.mask_b1ts,
                    bias_bhts=self._bias_bhts(q_bthk, around),
                    **self._options(),
                )  # fmt: skip
            case "flash":
                sight, bias = around.sight, around.bias
                y_bthk = flash_attention(
                    q_bthk, k_bsgk, v_bsgk, sight, bias=bias, **self._options()
                )
            case "local" | "chunked":
                bands = [Band(k_bsgk, v_bsgk, near(self.config, self.kind))]
                y_bthk = self._banded(q_bthk, bands, around)
            case "recurrent":
                # What is remembered has the same values, but is not learned through.
                _, *remembered = self._project(jax.lax.stop_gradient(x_btd), around)
                memory = dataclasses.replace(near(self.config, self.kind), own=False)
                own = Band(k_bsgk, v_bsgk, Near(chunk=memory.chunk))
                y_bthk = self._banded(q_bthk, [own, Band(*remembered, memory)], around)
        return self.out(y_bthk)

    def _banded(self, q_bthk: Array, bands: list[Band], around: Surroundings) -> Array:
        furthest = max(band.near.reach[0] for band in bands)
        bias = self._bias(around, distances=furthest + 1)
        return banded_attention(q_bthk, bands, around.sight, bias=bias, **self._options())

    def over_source(self, x_btd: Array, keys_values: tuple[Array, Array], sight: Sight) -> Array:
        """Cross-attention over keys and values (B, S, G, K) from `project_source`."""
        q_bthk = constrain(self.query(x_btd), "batch", "length", "heads", None)
        match kind_of_cross_attention(self.kind):
            case "dot":
                mask_b1ts = sight.mask_b1ts()
                y_bthk = dot_attention(q_bthk, *keys_values, mask_b1ts=mask_b1ts, **self._options())
            case _:
                y_bthk = flash_attention(q_bthk, *keys_values, sight, **self._options())
        return self.out(y_bthk)

    def project_source(self, source_bsd: Array) -> tuple[Array, Array]:
        return tuple(apply_together(source_bsd, self.key, self.value))

    def remembering(
        self, x_btd: Array, cached: tuple[Array, Array], around: Surroundings
    ) -> tuple[Array, tuple[Array, Array]]:
        """Over what is cached and x itself, whose keys and values are written there first."""
        q_bthk, *new = self._project(x_btd, around)
        new_k_bgkt, new_v_bgtk = as_cached(*new)
        k_bgks = write(cached[0], new_k_bgkt, around.cache_slot, axis=3)
        v_bgsk = write(cached[1], new_v_bgtk, around.cache_slot, axis=2)
        mask_b1ts = around.mask_b1ts
        if (is_near := near(self.config, self.kind)) is not None:
            mask_b1ts &= dataclasses.replace(around.sight, near=is_near).mask_b1ts()
        bias_bhts = self._bias_bhts(q_bthk, around)
        given = dict(mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, scale=self._scale)
        return self.out(cached_attention(q_bthk, k_bgks, v_bgsk, **given)), (k_bgks, v_bgsk)

    def recalling(self, x_btd: Array, cached: tuple[Array, Array], sight: Sight) -> Array:
        """Over what is cached alone: the source, in cross-attention."""
        q_bthk = constrain(self.query(x_btd), "batch", "length", "heads", None)
        mask_b1ts = sight.mask_b1ts()
        y_bthk = cached_attention(q_bthk, *cached, mask_b1ts=mask_b1ts, scale=self._scale)
        return self.out(y_bthk)

    def _project(self, x_btd: Array, around: Surroundings) -> tuple[Array, Array, Array]:
        q_bthk, k_bsgk, v_bsgk = apply_together(x_btd, self.query, self.key, self.value)
        if around.rope_positions_bt is not None:
            frequencies = rope_frequencies(self.config)
            q_bthk = rope(q_bthk, around.rope_positions_bt, frequencies)
            k_bsgk = rope(k_bsgk, around.rope_positions_bt, frequencies)
        if self.config.position == "transformer_xl":
            q_bthk += self.content_bias.astype(q_bthk.dtype)
        return constrain(q_bthk, "batch", "length", "heads", None), k_bsgk, v_bsgk

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

    def _bias_bhts(self, q_bthk: Array, around: Surroundings) -> Array | None:
        """The same for every pair."""
        if self.config.position != "transformer_xl":
            return around.bias_bhts
        queries, keys = around.sight.queries.positions_bt, around.sight.keys.positions_bt
        bias = self._bias(around, distances=keys.shape[1])
        return bias(q_bthk * jnp.asarray(self._scale, q_bthk.dtype), queries, keys)

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
        return self.config.head_size**-0.5 if self.config.attention_scale else 1.0
