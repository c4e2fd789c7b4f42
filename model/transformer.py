"""Block, Stack and the three families composed from them."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.attention import Attention, LayerCache, as_cached, write
from model.config import TransformerConfig
from model.layers import Dropout, Embedding, FeedForward, Norm, PatchEmbedding
from model.masks import attention_mask, positions_or_default, segments_or_default
from model.positions import alibi, sinusoidal, t5_bucket
from model.sharding import constrain


@flax.struct.dataclass
class Cache:
    """Everything a decoder remembers between calls. In goes one, out comes the next."""

    layers: tuple[LayerCache, ...]
    positions_bs: Array
    segments_bs: Array  # 0 where the slot is empty or holds padding
    # How many tokens went in: one number, or one for each row. When all slots are taken, a single
    # token takes the place of the oldest.
    index: Array


@flax.struct.dataclass
class Surroundings:
    """What every block of a stack sees alike: masks, biases, the source."""

    mask_b1ts: Array
    bias_bhts: Array | None = None
    rope_positions_bt: Array | None = None
    source_bsd: Array | None = None
    cross_mask_b1ts: Array | None = None
    cache_slot: Array | None = None  # where in the cache this call's tokens go


class Block(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward."""

    config: TransformerConfig
    cross: bool
    deterministic: bool

    @nn.compact
    def __call__(
        self, x_btd: Array, cache: LayerCache | None, around: Surroundings
    ) -> tuple[Array, LayerCache | None]:
        config = self.config

        def self_attention(y_btd):
            attention = Attention(config, self.deterministic, name="self_attention")
            given = dict(
                mask_b1ts=around.mask_b1ts,
                bias_bhts=around.bias_bhts,
                rope_positions_bt=around.rope_positions_bt,
            )
            if cache is None:
                return attention(y_btd, **given), None
            kept = cache.key_bgks, cache.value_bgsk
            return attention.remembering(y_btd, kept, around.cache_slot, **given)

        def cross_attention(y_btd):
            attention = Attention(config, self.deterministic, name="cross_attention")
            mask_b1ts = around.cross_mask_b1ts
            if around.source_bsd is None:
                kept = cache.cross_key_bgks, cache.cross_value_bgsk
                return attention.recalling(y_btd, kept, mask_b1ts=mask_b1ts), kept
            keys_values = attention.project_source(around.source_bsd)
            y_btd = attention(y_btd, mask_b1ts=mask_b1ts, keys_values=keys_values)
            return y_btd, None if cache is None else as_cached(*keys_values)

        def feed_forward(y_btd):
            return FeedForward(config, self.deterministic, name="feed_forward")(y_btd), None

        x_btd, kept = self._residual(x_btd, self_attention, "self_attention_norm")
        cross_kept = (None, None)
        if self.cross:
            x_btd, cross_kept = self._residual(x_btd, cross_attention, "cross_attention_norm")
        x_btd, _ = self._residual(x_btd, feed_forward, "feed_forward_norm")
        return x_btd, None if cache is None else LayerCache(*kept, *cross_kept)

    def _residual(self, x_btd: Array, sublayer, norm_name: str):
        """x + sublayer(norm(x)), or norm(x + sublayer(x)); and what else the sublayer gives."""
        norm = Norm(self.config, name=norm_name)
        pre = self.config.norm_placement == "pre"
        y_btd, rest = sublayer(norm(x_btd) if pre else x_btd)
        x_btd = x_btd + Dropout(self.config.dropout_residual, self.deterministic)(y_btd)
        x_btd = constrain(x_btd, "batch", "length", "hidden")
        return x_btd if pre else norm(x_btd), rest


class RelativeBias(nn.Module):
    """T5's learned bias per head and bucket of relative position."""

    config: TransformerConfig
    bidirectional: bool

    @nn.compact
    def __call__(self, query_positions_bt: Array, key_positions_bs: Array) -> Array:
        config = self.config
        table = self.param(
            "embedding",
            nn.with_logical_partitioning(
                nn.initializers.normal(config.init_std or config.width**-0.5), ("buckets", "heads")
            ),
            (config.relative_buckets, config.heads),
            jnp.dtype(config.param_dtype),
        )
        buckets_bts = t5_bucket(
            key_positions_bs[:, None] - query_positions_bt[:, :, None],
            bidirectional=self.bidirectional,
            buckets=config.relative_buckets,
            max_distance=config.relative_max_distance,
        )
        return jnp.moveaxis(table.astype(jnp.float32)[buckets_bts], -1, 1)


class Stack(nn.Module):
    """Embedded tokens in, hidden states out: positions, blocks, final norm.

    The blocks are scanned, with parameters stacked on a leading axis of layers, whether or not
    the scan is unrolled: one parameter layout serves both.
    """

    config: TransformerConfig
    layers: int
    causal: bool
    cross: bool = False

    @nn.compact
    def __call__(
        self,
        x_btd: Array,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        *,
        prefix_bt: Array | None = None,
        source_bsd: Array | None = None,
        source_segments_bs: Array | None = None,
        cache: Cache | None = None,
        visible_bts: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Cache | None]:
        config = self.config
        segments_bt = segments_or_default(segments_bt, x_btd)
        positions_bt = positions_or_default(positions_bt, x_btd)
        key_positions_bs, key_segments_bs, key_prefix_bs = positions_bt, segments_bt, prefix_bt
        if cache is not None:
            cache_slot = cache.index % cache.segments_bs.shape[1]
            cache = cache.replace(
                positions_bs=_write(cache.positions_bs, positions_bt, cache_slot),
                segments_bs=_write(cache.segments_bs, segments_bt, cache_slot),
            )
            key_positions_bs, key_segments_bs = cache.positions_bs, cache.segments_bs
            if prefix_bt is not None:
                key_prefix_bs = _write(jnp.zeros_like(key_segments_bs), prefix_bt, cache_slot)

        mask_b1ts = attention_mask(
            positions_bt, key_positions_bs, segments_bt, key_segments_bs,
            causal=self.causal, key_prefix_bs=key_prefix_bs,
        )  # fmt: skip
        if visible_bts is not None:
            mask_b1ts &= visible_bts[:, None]
        around = Surroundings(
            mask_b1ts=mask_b1ts,
            bias_bhts=self._bias(positions_bt, key_positions_bs),
            rope_positions_bt=positions_bt if config.position == "rope" else None,
            cache_slot=None if cache is None else cache_slot,
        )
        if self.cross:
            around = around.replace(
                source_bsd=source_bsd,
                cross_mask_b1ts=attention_mask(
                    positions_bt, positions_or_default(None, source_segments_bs),
                    segments_bt, source_segments_bs, causal=False,
                ),
            )  # fmt: skip

        x_btd = self._embed(x_btd, positions_bt, deterministic)
        if cache is None:
            x_btd, _ = self._blocks(deterministic)(x_btd, None, around)
        else:
            x_btd, layer_caches = self._one_by_one(x_btd, cache.layers, around)
        if config.norm_placement == "pre":
            x_btd = Norm(config, name="final_norm")(x_btd)
        if cache is not None:
            cache = cache.replace(layers=layer_caches, index=cache.index + x_btd.shape[1])
        return x_btd, cache

    def _embed(self, x_btd: Array, positions_bt: Array, deterministic: bool) -> Array:
        """Adds absolute positions, normalises and drops as configured."""
        config = self.config
        if config.position == "sinusoidal":
            x_btd += sinusoidal(positions_bt, config.width).astype(x_btd.dtype)
        elif config.position == "learned":
            table = Embedding(config, config.max_length, "positions", name="position_embedding")
            # Beside rows that still speak, others have ended, and go on to where there is none.
            x_btd += table(jnp.minimum(positions_bt, config.max_length - 1))
        if config.embedding_norm:
            x_btd = Norm(config, name="embedding_norm")(x_btd)
        x_btd = Dropout(config.dropout_embedding, deterministic)(x_btd)
        return constrain(x_btd, "batch", "length", "hidden")

    def _bias(self, query_positions_bt: Array, key_positions_bs: Array) -> Array | None:
        """What relative positions add to the scores, computed once for all layers."""
        if self.config.position == "alibi":
            return alibi(query_positions_bt, key_positions_bs, self.config.heads)
        if self.config.position == "t5_bias":
            bias = RelativeBias(self.config, not self.causal, name="relative_bias")
            return bias(query_positions_bt, key_positions_bs)
        return None

    def _blocks(self, deterministic: bool) -> nn.Module:
        block, remat = Block, self.config.remat
        if remat != "none":
            products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            policy = products if remat == "dots" else None
            # Inside a scan nothing can be merged across the barrier anyway.
            block = nn.remat(Block, policy=policy, prevent_cse=False)
        # XLA's CPU backend copies what a loop carries, so there the loop is undone, unless remat is
        # to save memory: without a loop, the compiler keeps what it was told to recompute.
        undo_loop = jax.default_backend() == "cpu" and remat == "none"
        scanned = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast),
            out_axes=0,
            length=self.layers,
            unroll=min(self.config.unroll or (self.layers if undo_loop else 1), self.layers),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scanned(self.config, self.cross, deterministic, name="blocks")

    def _one_by_one(
        self, x_btd: Array, caches: tuple[LayerCache, ...], around: Surroundings
    ) -> tuple[Array, tuple[LayerCache, ...]]:
        """The blocks for decoding, where copying weights or caches costs as much as using them.

        Each has arrays of its own, which a loop over tokens can update in place.
        """
        params = self.get_variable("params", "blocks")
        if LAYER.format(0) not in params:
            params = by_layer(params, self.layers)
        block = Block(self.config, self.cross, deterministic=True, parent=None)
        new_caches = []
        for number, cache in enumerate(caches):
            layer = {"params": params[LAYER.format(number)]}
            x_btd, new_cache = block.apply(layer, x_btd, cache, around)
            new_caches.append(new_cache)
        return x_btd, tuple(new_caches)


LAYER = "layer_{}"


def by_layer(stacked: dict, layers: int) -> dict:
    """Parameters of blocks, stacked on an axis of layers, as one tree for each layer."""
    return {
        LAYER.format(number): jax.tree.map(lambda leaf, n=number: leaf[n], stacked)
        for number in range(layers)
    }


def _write(buffer_bs: Array, new_bt: Array, slot: Array) -> Array:
    return write(buffer_bs, jnp.broadcast_to(new_bt, (len(buffer_bs), new_bt.shape[1])), slot, 1)


def empty_cache(config: TransformerConfig, batch: int, slots: int, source_slots: int = 0) -> Cache:
    """A cache for `slots` tokens a row, and for a source of `source_slots` tokens."""

    def layer() -> LayerCache:
        def keys(length):
            return jnp.zeros((batch, config.kv_heads, config.head_size, length), config.dtype)

        def values(length):
            return jnp.zeros((batch, config.kv_heads, length, config.head_size), config.dtype)

        if config.family != "encoder_decoder":
            return LayerCache(keys(slots), values(slots))
        return LayerCache(keys(slots), values(slots), keys(source_slots), values(source_slots))

    return Cache(
        layers=tuple(layer() for _ in range(config.decoder_layers)),
        positions_bs=jnp.zeros((batch, slots), jnp.int32),
        segments_bs=jnp.zeros((batch, slots), jnp.int32),
        index=jnp.zeros((), jnp.int32),
    )


class Transformer(nn.Module):
    """The three families: hidden states from tokens or images. Heads turn them into answers."""

    config: TransformerConfig

    def setup(self):
        config = self.config
        if config.input == "tokens":
            self.token_embedding = Embedding(config, config.vocab_size, "vocab")
        else:
            self.patch_embedding = PatchEmbedding(config)
        if config.family == "encoder_decoder" and not config.share_embeddings:
            self.encoder_token_embedding = Embedding(config, config.vocab_size, "vocab")
        if config.token_types:
            self.token_type_embedding = Embedding(config, config.token_types, "buckets")
        if config.has_encoder:
            self.encoder = Stack(config, config.encoder_layers, causal=False)
        if config.has_decoder:
            self.decoder = Stack(
                config, config.decoder_layers, causal=True, cross=config.family == "encoder_decoder"
            )

    def encode(
        self,
        inputs: Array,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        token_types_bt: Array | None = None,
        deterministic: bool = True,
    ) -> Array:
        """Hidden states of the encoder; `inputs` are tokens (B, T) or images (B, rows, cols, C)."""
        config = self.config
        if config.input == "patches":
            x_btd = self.patch_embedding(inputs)
        elif config.family == "encoder_decoder" and not config.share_embeddings:
            x_btd = self._scaled(self.encoder_token_embedding(inputs))
        else:
            x_btd = self._scaled(self.token_embedding(inputs))
        if config.token_types:
            if token_types_bt is None:
                token_types_bt = jnp.zeros((1, x_btd.shape[1]), jnp.int32)
            x_btd += self.token_type_embedding(token_types_bt)
        x_btd, _ = self.encoder(x_btd, positions_bt, segments_bt, deterministic=deterministic)
        return x_btd

    def decode(
        self,
        inputs_bt: Array,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        prefix_bt: Array | None = None,
        source_bsd: Array | None = None,
        source_segments_bs: Array | None = None,
        cache: Cache | None = None,
        visible_bts: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Cache | None]:
        """Hidden states of the decoder, and the next cache if one was given.

        With a cache that already holds the source's keys and values, `source_bsd` may be None.
        Where `visible_bts` is False, a token does not see a slot that it otherwise would.
        """
        if cache is not None and positions_bt is None:
            steps = jnp.arange(inputs_bt.shape[1], dtype=jnp.int32)
            positions_bt = cache.index.reshape(-1, 1) + steps
        if self.config.family == "encoder_decoder" and source_segments_bs is None:
            slots = source_bsd if source_bsd is not None else cache.layers[0].cross_value_bgsk[:, 0]
            source_segments_bs = segments_or_default(None, slots)
        return self.decoder(
            self._scaled(self.token_embedding(inputs_bt)),
            positions_bt,
            segments_bt,
            prefix_bt=prefix_bt,
            source_bsd=source_bsd,
            source_segments_bs=source_segments_bs,
            cache=cache,
            visible_bts=visible_bts,
            deterministic=deterministic,
        )

    def _scaled(self, x_btd: Array) -> Array:
        if not self.config.embedding_scale:
            return x_btd
        return x_btd * jnp.asarray(self.config.width**0.5, x_btd.dtype)
