"""Heads on top of the backbone: tokens, masked tokens, classes, quantiles, or an embedding."""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import soft_cap
from model.config import TransformerConfig
from model.kv_cache import Cache
from model.layers import Dense, Dropout, Norm, activate, output_multiplied
from model.masks import PADDING, segments_or_default
from model.sharding import constrain
from model.transformer import Transformer


class Vocabulary(nn.Module):
    """Computes logits (B, T, V) over the vocabulary: tied to the token table, or with a kernel."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_btd: Array, backbone: Transformer) -> Array:
        config = self.config
        if config.output_scale:
            x_btd *= jnp.asarray(config.base_width**-0.5, x_btd.dtype)
        if config.tie_output:
            logits_btv = backbone.token_embedding.logits(output_multiplied(config, x_btd))
        else:
            logits_btv = Dense(
                config, (config.vocab_size,), ("width", "vocab"), bias=False, name="output"
            )(x_btd)
        if config.output_bias:
            bias = self.param(
                "bias",
                nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",)),
                (config.vocab_size,),
                jnp.dtype(config.param_dtype),
            )
            logits_btv += bias.astype(logits_btv.dtype)
        if config.logit_multiplier != 1:
            logits_btv *= jnp.asarray(config.logit_multiplier, logits_btv.dtype)
        return constrain(soft_cap(logits_btv, config.logit_cap), "batch", "length", "vocab")


class LanguageModel(nn.Module):
    """Next-token logits (B, T, V) of decoders, and of encoder-decoders with a source."""

    config: TransformerConfig

    def setup(self):
        self.backbone = Transformer(self.config)
        self.vocabulary = Vocabulary(self.config)

    def __call__(
        self,
        inputs_bt: Array,
        encoder_inputs_bs: Array | None = None,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        prefix_bt: Array | None = None,
        encoder_positions_bs: Array | None = None,
        encoder_segments_bs: Array | None = None,
        deterministic: bool = True,
    ) -> Array:
        source_bsd = None
        if self.config.family == "encoder_decoder":
            source_bsd = self.encode(
                encoder_inputs_bs,
                positions_bt=encoder_positions_bs,
                segments_bt=encoder_segments_bs,
                deterministic=deterministic,
            )
        logits_btv, _ = self.decode(
            inputs_bt,
            positions_bt=positions_bt,
            segments_bt=segments_bt,
            prefix_bt=prefix_bt,
            source_bsd=source_bsd,
            source_segments_bs=encoder_segments_bs,
            deterministic=deterministic,
        )
        return logits_btv

    def encode(self, inputs_bs: Array, **options) -> Array:
        """Returns the encoder's hidden states (B, S, D). Options: see Transformer.encode."""
        return self.backbone.encode(inputs_bs, **options)

    def decode(
        self, inputs_bt: Array, *, last_only: bool = False, **options
    ) -> tuple[Array, Cache | None]:
        """Returns logits (B, T, V), or (B, 1, V) with `last_only`, and the next cache.

        The other options are those of Transformer.decode.
        """
        x_btd, cache = self.backbone.decode(inputs_bt, **options)
        if last_only:
            x_btd = x_btd[:, -1:]
        return self.vocabulary(x_btd, self.backbone), cache


class Pool(nn.Module):
    """Pools a row to one vector (B, D): its first or last token, or the mean, without padding.

    "first_mean" gives (B, 2 D): the first token, and the mean of the others.

    With `each_token`, it applies only the layers of the pooler, to every token (B, T, D).
    """

    config: TransformerConfig
    each_token: bool = False

    @nn.compact
    def __call__(self, x_btd: Array, segments_bt: Array | None) -> Array:
        config = self.config
        real_bt = segments_or_default(segments_bt, x_btd) != PADDING
        real_bt = jnp.broadcast_to(real_bt, x_btd.shape[:2])
        match "each" if self.each_token else config.pooling:
            case "each":
                x_bd = x_btd
            case "first":
                x_bd = _at(x_btd, real_bt.argmax(axis=1))
            case "last":
                x_bd = _at(x_btd, x_btd.shape[1] - 1 - real_bt[:, ::-1].argmax(axis=1))
            case "mean":
                x_bd = _mean(x_btd, real_bt)
            case "first_mean":
                first_b = real_bt.argmax(axis=1)
                is_other_bt = real_bt & (jnp.arange(x_btd.shape[1]) != first_b[:, None])
                x_bd = jnp.concatenate([_at(x_btd, first_b), _mean(x_btd, is_other_bt)], axis=-1)
        if config.pooler:
            x_bd = _head_dense(config, "dense", config.width)(x_bd)
            name = config.pooler_activation
            x_bd = jnp.tanh(x_bd) if name == "tanh" else activate(name, x_bd)
        if config.pooler_norm:
            x_bd = Norm(config, name="norm")(x_bd)
        return x_bd


def _head_dense(config: TransformerConfig, name: str, width: int) -> Dense:
    """The dense layer before the output layer of an encoder."""
    return Dense(config, (width,), ("width", "pooled"), bias=config.head_bias, name=name)


def _at(x_btd: Array, slots_b: Array) -> Array:
    return jnp.take_along_axis(x_btd, slots_b[:, None, None], axis=1)[:, 0]


def _mean(x_btd: Array, is_counted_bt: Array) -> Array:
    weights_bt1 = is_counted_bt[..., None].astype(jnp.float32)
    total_bd = (x_btd.astype(jnp.float32) * weights_bt1).sum(axis=1)
    return (total_bd / jnp.maximum(weights_bt1.sum(axis=1), 1.0)).astype(x_btd.dtype)


class MaskedLanguageModel(nn.Module):
    """BERT's two heads: masked tokens, and whether the second sentence follows the first."""

    config: TransformerConfig
    next_sentence: bool = False

    @nn.compact
    def __call__(
        self,
        inputs_bt: Array,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        token_types_bt: Array | None = None,
        predicted_bx: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array | None]:
        """Returns token logits (B, T, V), and next-sentence logits (B, 2) or None.

        With `predicted_bx`, the logits are those of these positions of each row (B, X, V).
        """
        config = self.config
        backbone = Transformer(config, name="backbone")
        x_btd = backbone.encode(
            inputs_bt,
            positions_bt=positions_bt,
            segments_bt=segments_bt,
            token_types_bt=token_types_bt,
            deterministic=deterministic,
        )
        follows_b2 = None
        if self.next_sentence:
            pooled_bd = Pool(config, name="pool")(x_btd, segments_bt)
            classify = Dense(config, (2,), ("pooled", "classes"), bias=True, name="next_sentence")
            follows_b2 = classify(pooled_bd)
        if predicted_bx is not None:
            x_btd = jnp.take_along_axis(x_btd, predicted_bx[..., None], axis=1)
        return _masked_tokens(config, x_btd, backbone), follows_b2


def _masked_tokens(config: TransformerConfig, x_btd: Array, backbone: Transformer) -> Array:
    """BERT's masked-token logits (B, T, V). The layers belong to the calling module."""
    transform = _head_dense(config, "transform", config.embedding_width)
    x_btd = activate(config.activation, transform(x_btd))
    x_btd = Norm(config, name="transform_norm")(x_btd)
    return Vocabulary(config, name="vocabulary")(x_btd, backbone)


class Classifier(nn.Module):
    """Class logits (B, C) of a text or an image, and optionally token logits (B, T, V)."""

    config: TransformerConfig
    masked_tokens: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        token_types_bt: Array | None = None,
        deterministic: bool = True,
    ) -> Array | tuple[Array, Array]:
        config = self.config
        backbone = Transformer(config, name="backbone")
        given = dict(positions_bt=positions_bt, segments_bt=segments_bt)
        if config.family == "encoder":
            x_btd = backbone.encode(
                inputs, token_types_bt=token_types_bt, deterministic=deterministic, **given
            )
        else:
            x_btd, _ = backbone.decode(inputs, deterministic=deterministic, **given)
        pooled_bd = Pool(config, name="pool")(x_btd, segments_bt)
        pooled_bd = Dropout(config.dropout_residual, deterministic)(pooled_bd)
        logits_bc = _classes(config)(pooled_bd)
        if config.distillation == "head":
            second_bd = Dropout(config.dropout_residual, deterministic)(x_btd[:, 1])
            logits_bc = (logits_bc + _classes(config, "distillation_classes")(second_bd)) / 2
        if self.masked_tokens:
            return logits_bc, _masked_tokens(config, x_btd, backbone)
        return logits_bc


class TokenClassifier(nn.Module):
    """Class logits (B, T, C) of every token; the options are those of Transformer.encode."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, inputs_bt: Array, *, segments_bt: Array | None = None, **options: Any
    ) -> Array:
        x_btd = _token_states(self.config, inputs_bt, segments_bt, **options)
        return _classes(self.config)(x_btd)


class SpanPredictor(nn.Module):
    """Logits (B, 2, T) of each token to be the first of an answer, and to be the last.

    Those of padding are the lowest number, so that softmax over a row leaves them out. The options
    are those of Transformer.encode.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, inputs_bt: Array, *, segments_bt: Array | None = None, **options: Any
    ) -> Array:
        config = self.config
        x_btd = _token_states(config, inputs_bt, segments_bt, **options)
        ends = Dense(config, (2,), ("pooled", "classes"), bias=config.class_bias, name="span")
        logits_b2t = ends(x_btd).astype(jnp.float32).swapaxes(1, 2)
        is_real_b1t = (segments_or_default(segments_bt, x_btd) != PADDING)[:, None]
        return jnp.where(is_real_b1t, logits_b2t, jnp.finfo(jnp.float32).min)


def _token_states(
    config: TransformerConfig,
    inputs_bt: Array,
    segments_bt: Array | None,
    *,
    deterministic: bool = True,
    **options: Any,
) -> Array:
    """The input (B, T, D) of a head for tokens. The layers belong to the calling module."""
    x_btd = Transformer(config, name="backbone").encode(
        inputs_bt, segments_bt=segments_bt, deterministic=deterministic, **options
    )
    x_btd = Pool(config, each_token=True, name="pool")(x_btd, segments_bt)
    return Dropout(config.dropout_residual, deterministic)(x_btd)


def _classes(config: TransformerConfig, name: str = "classes") -> Dense:
    """The output layer of classifiers. It belongs to the calling module."""
    axes = ("pooled", "classes")
    return Dense(config, (config.num_classes,), axes, bias=config.class_bias, name=name)


class Forecaster(nn.Module):
    """Quantiles (B, T, C) of the values after a window, in the window's units and in order.

    Also returns the deviation that the model normalises with, the scale of a loss.
    """

    config: TransformerConfig
    quantiles: int

    @nn.compact
    def __call__(self, inputs: Array, *, deterministic: bool = True) -> tuple[Array, Array]:
        config = self.config
        x_btd = Transformer(config, name="backbone").encode(inputs, deterministic=deterministic)
        x_bd = Pool(config, name="pool")(x_btd, None)
        x_bd = Dropout(config.dropout_residual, deterministic)(x_bd)
        features = (config.horizon * self.quantiles,)
        dense = Dense(config, features, ("pooled", "classes"), bias=True, name="quantiles")
        y_btc = dense(x_bd).astype(jnp.float32).reshape(-1, config.horizon, self.quantiles)
        # Sorted, because independent outputs may cross; this never raises the pinball loss.
        y_btc = jnp.sort(y_btc, axis=-1)
        mean, std = (
            jnp.float32(each[0] if each else default)
            for each, default in ((config.input_mean, 0.0), (config.input_std, 1.0))
        )
        return y_btc * std + mean, std


class Embedder(nn.Module):
    """The embedding of a text or an image (B, D), and its hidden states (B, T, D).

    "pooled" is the input of a classifier; "first" and "mean" pool the hidden states without the
    pooler's layer.
    """

    config: TransformerConfig
    embedding: Literal["pooled", "first", "mean"] = "pooled"
    normalize: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        *,
        positions_bt: Array | None = None,
        segments_bt: Array | None = None,
        token_types_bt: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Array, Array]:
        config = self.config
        x_btd = Transformer(config, name="backbone").encode(
            inputs,
            positions_bt=positions_bt,
            segments_bt=segments_bt,
            token_types_bt=token_types_bt,
            deterministic=deterministic,
        )
        # Called even if unused, because its parameters belong to the model.
        y_bd = Pool(config, name="pool")(x_btd, segments_bt)
        if self.embedding != "pooled":
            plain = dataclasses.replace(config, pooling=self.embedding, pooler=False)
            y_bd = Pool(plain, name="plain_pool")(x_btd, segments_bt)
        if self.normalize:
            length_b1 = jnp.linalg.norm(y_bd.astype(jnp.float32), axis=-1, keepdims=True)
            y_bd = (y_bd / jnp.maximum(length_b1, 1e-12)).astype(y_bd.dtype)
        return y_bd, x_btd
