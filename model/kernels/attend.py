"""Self-attention in any kind, as a pure function: the one place where a kind becomes a kernel."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.kernels.banded import Band, banded_attention
from model.kernels.dot import Heads, attended, dot_attention
from model.kernels.flash import flash_attention
from model.kernels.hierarchical import hierarchical_attention
from model.kernels.linear import FeatureMap, elu_plus_one, summed_attention
from model.kernels.longformer import longformer_attention
from model.kernels.performer import relu_features, softmax_features
from model.kinds import SUMMED
from model.masks import Near, Sight
from model.positions import ScoreBias


def attend(
    kind: str,
    config: TransformerConfig,
    heads: Heads,
    sight: Sight,
    *,
    scale: float,
    bias: ScoreBias | None = None,
    mask_b1ts: Array | None = None,
    bias_bhts: Array | None = None,
    general: Heads | None = None,
    remembered: Heads | None = None,
    features: FeatureMap | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """What each query gets, (B, T, H, K).

    `mask_b1ts` and `bias_bhts` are `sight` and `bias` written out, for kinds that would do it
    otherwise; `general` are the heads of a longformer's global tokens, `remembered` those that a
    recurrent kind has of other chunks, and through `features` kinds that sum see queries and keys.
    """
    sight = seen_by(kind, config, sight)
    options = dict(scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key)
    match kind:
        case "dot":
            if mask_b1ts is None:
                mask_b1ts = sight.mask_b1ts()
            if bias_bhts is None and bias is not None:
                bias_bhts = written_out(bias, heads.q_bthk, sight, scale)
            return dot_attention(*heads, mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, **options)
        case "flash":
            return flash_attention(*heads, sight, bias=bias, **options)
        case "local" | "chunked":
            bands = [Band(heads.k_bsgk, heads.v_bsgk, sight.near)]
            return banded_attention(heads.q_bthk, bands, sight, bias=bias, **options)
        case "recurrent":
            memory = dataclasses.replace(sight.near, own=False)
            own = Band(heads.k_bsgk, heads.v_bsgk, Near(chunk=memory.chunk))
            bands = [own, Band(remembered.k_bsgk, remembered.v_bsgk, memory)]
            return banded_attention(heads.q_bthk, bands, sight, bias=bias, **options)
        case "longformer":
            options |= dict(bias=bias, limit=config.global_limit)
            return longformer_attention(heads, general, sight, **options)
        case "hierarchical":
            options |= dict(chunk=config.attention_chunk)
            return attended(hierarchical_attention(*heads, sight, **options))
        case "linear" | "performer":
            return attended(summed_attention(*heads, features, sight)[0])
    raise ValueError(f"unknown kind {kind!r}")


def attend_to_source(
    kind: str,
    heads: Heads,
    sight: Sight,
    *,
    scale: float,
    features: FeatureMap | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """The same over a source, to which nothing is near or far: all kinds see all of it."""
    options = dict(scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key)
    if kind == "dot":
        return dot_attention(*heads, mask_b1ts=sight.mask_b1ts(), **options)
    if kind in SUMMED:
        return attended(summed_attention(*heads, features, sight)[0])
    return flash_attention(*heads, sight, **options)


def seen_by(kind: str, config: TransformerConfig, sight: Sight) -> Sight:
    """The rule of masks with what a kind takes to be near.

    Tokens that are global to one layer of a pattern are like any other to a layer of another kind.
    """
    queries, keys = sight.queries, sight.keys
    if kind != "longformer":
        queries, keys = (dataclasses.replace(side, global_bt=None) for side in (queries, keys))
    return dataclasses.replace(sight, queries=queries, keys=keys, near=near(config, kind))


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


def feature_map(
    config: TransformerConfig, kind: str, directions_mk: Array | None
) -> FeatureMap | None:
    """Through which a kind that sums sees queries and keys; None for every other."""
    if kind == "linear":
        return elu_plus_one(config.head_size)
    if kind == "performer":
        features = softmax_features if config.attention_kernel == "softmax" else relu_features
        return features(directions_mk, score_scale(config))
    return None


def score_scale(config: TransformerConfig) -> float:
    return config.head_size**-0.5 if config.attention_scale else 1.0


def written_out(bias: ScoreBias, q_bthk: Array, sight: Sight, scale: float) -> Array:
    """What is added to the score of every pair, (B, H, T, S)."""
    scaled_bthk = q_bthk * jnp.asarray(scale, q_bthk.dtype)
    return bias(scaled_bthk, sight.queries.positions_bt, sight.keys.positions_bt)
