"""The Transformer of three families: encoder, decoder and encoder-decoder."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.kv_cache import Cache
from model.layers import Embedding, PatchEmbedding
from model.masks import positions_or_default, segments_or_default, up_to_first
from model.stack import Stack
from model.token_dropout import drop_masked


class Transformer(nn.Module):
    """Computes the hidden states of tokens or images, for all families.

    model/heads.py has the output heads.
    """

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
        """Hidden states (B, T, D) of tokens (B, T), or of what is cut into patches.

        That is (B, rows, columns, channels), such as images, or (B, steps, channels).
        """
        config = self.config
        if config.input == "patches":
            x_btd = self.patch_embedding(inputs)
        elif config.family == "encoder_decoder" and not config.share_embeddings:
            x_btd = self._scaled(self.encoder_token_embedding(inputs))
        else:
            x_btd = self._scaled(self.token_embedding(inputs))
        if config.token_dropout:
            is_masked_bt = inputs == config.mask_id
            x_btd = drop_masked(x_btd, is_masked_bt, segments_or_default(segments_bt, x_btd))
        if config.token_types:
            if token_types_bt is None:
                token_types_bt = jnp.zeros((1, x_btd.shape[1]), jnp.int32)
            x_btd += self.token_type_embedding(token_types_bt)
        x_btd, _ = self.encoder(
            x_btd,
            positions_bt,
            segments_bt,
            global_bt=self._global(inputs, positions_bt),
            deterministic=deterministic,
        )
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
        """Returns the decoder's hidden states (B, T, D), and the next cache if one is given.

        `source_bsd` may be None if the cache holds the source's keys and values. `visible_bts`
        masks more slots of the cache: a token does not see a slot where it is False.
        """
        if cache is not None and positions_bt is None:
            steps = jnp.arange(inputs_bt.shape[1], dtype=jnp.int32)
            positions_bt = cache.index.reshape(-1, 1) + steps
        if self.config.family == "encoder_decoder" and source_segments_bs is None:
            like_bsd = source_bsd
            if source_bsd is None:
                like_bsd = cache.source_bsd
                if self.config.has_cross_attention:
                    like_bsd = cache.layers[0].cross_attention.value_bgsk[:, 0]
            source_segments_bs = segments_or_default(None, like_bsd)
        return self.decoder(
            self._scaled(self.token_embedding(inputs_bt)),
            positions_bt,
            segments_bt,
            prefix_bt=prefix_bt,
            global_bt=self._global(inputs_bt, positions_bt),
            source_bsd=source_bsd,
            source_segments_bs=source_segments_bs,
            cache=cache,
            visible_bts=visible_bts,
            deterministic=deterministic,
        )

    def _global(self, inputs: Array, positions_bt: Array | None) -> Array | None:
        """Returns which tokens are global, (B, T); None: the first of each text (the default)."""
        if self.config.global_tokens == "first" or self.config.input == "patches":
            return None
        is_separator_bt = inputs == self.config.separator_id
        if self.config.global_tokens == "separators":
            return is_separator_bt
        return up_to_first(is_separator_bt, positions_or_default(positions_bt, inputs))

    def _scaled(self, x_btd: Array) -> Array:
        config = self.config
        scale = config.base_width**0.5 if config.embedding_scale else 1.0
        scale *= config.embedding_multiplier
        return x_btd if scale == 1 else x_btd * jnp.asarray(scale, x_btd.dtype)
