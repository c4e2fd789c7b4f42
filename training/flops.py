"""How much arithmetic a training step is, counted from the architecture alone.

Attention is counted by the pairs of a query and a key that its mask lets through: a causal model
has about half of them, a window its share. So does MaxText. Codebases that count all pairs, as the
formulas of PaLM and nanoGPT do, report more FLOPs and a higher MFU for the same speed.
"""

import functools
from collections.abc import Mapping

import numpy as np
from jax.typing import ArrayLike

from model.config import TransformerConfig
from model.kernels.attend import near
from model.kinds import SUMMED
from model.layers import GATED
from model.masks import Near
from training.config import TaskConfig


def forward_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Floating-point operations of the forward pass on one row.

    Counts matrix products alone, two operations for each multiplication and addition. A row is
    taken to be one text without padding; a prefix (prefix_lm) is counted as causal, and of
    longformer the window alone, since only the data knows how many global tokens there are.
    `length` is that of the decoder or only side.
    """
    encoder_length = source if config.family == "encoder_decoder" else length
    total = 0
    if config.has_encoder:
        for layer in range(config.encoder_layers):
            total += _block(config, layer, encoder_length, causal=False)
    if config.has_decoder:
        for layer in range(config.decoder_layers):
            total += _block(config, layer, length, causal=True)
            if config.family == "encoder_decoder":
                pairs = length * _source_seen(config, config.attention_kind(layer), source)
                total += _attention(config, length, source, pairs)
    if config.input == "patches":
        values = config.patch_size**2 * config.image_channels
        total += 2 * length * values * config.width
    return total + head_flops(config, objective, length)


def train_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Forward and backward on one row: the backward pass takes two products for each one."""
    return 3 * forward_flops(config, objective, length, source)


def row_flops(
    config: TransformerConfig,
    task: TaskConfig,
    batch: Mapping[str, ArrayLike],
    teacher: TransformerConfig | None = None,
) -> int:
    """Of a training step, for each row of a batch like this one.

    The backward pass is counted in full, also where parameters are frozen.
    """
    if config.input == "patches":
        length = (config.image_size // config.patch_size) ** 2 + config.class_token
    else:
        length = batch["inputs"].shape[1]
    source = batch["encoder_inputs"].shape[1] if "encoder_inputs" in batch else 0
    total = train_flops(config, task.objective, length, source)
    if task.auxiliary_masked_lm:
        total += 3 * head_flops(config, "masked_lm", length)
    if teacher is not None:
        total += forward_flops(teacher, task.objective, length, source)
    return total


def _block(config: TransformerConfig, layer: int, length: int, causal: bool) -> int:
    matrices = 3 if config.activation in GATED else 2
    feed_forward = 2 * length * matrices * config.width * config.feed_forward
    kind = config.attention_kind(layer)
    attention = _attention(config, length, length, _pairs(config, kind, length, causal))
    if kind == "longformer":  # projections of its global tokens, which all are given
        attention += _projections(config, length, length) - _output(config, length)
    return attention + feed_forward


def _pairs(config: TransformerConfig, kind: str, length: int, causal: bool) -> int:
    """How many pairs of a query and a key are multiplied, or what costs as much as so many."""
    if kind in SUMMED:  # adding a key to the sums, and reading them, is a product with all features
        return length * _features(config, kind)
    if kind == "hierarchical":
        chunk = config.attention_chunk
        full, rest = divmod(length, chunk)
        if causal:  # of each query, as many means as there are chunks before its own
            means = chunk * full * (full - 1) // 2 + rest * full
        else:
            means = length * (full + (rest > 0) - 1)
        return visible_pairs(Near(chunk=chunk), length, causal) + means
    return visible_pairs(near(config, kind), length, causal)


@functools.cache
def visible_pairs(is_near: Near | None, length: int, causal: bool) -> int:
    """Pairs of a query and a key in a row of one text that the mask lets through."""
    queries = np.arange(length)
    first, last = np.zeros(length, int), np.full(length, length - 1)
    dilation = 1
    if is_near is not None and is_near.chunk:
        start = queries // is_near.chunk * is_near.chunk
        first, last = start - is_near.before, start + is_near.chunk - 1 + is_near.after
    elif is_near is not None:
        dilation = is_near.dilation
        first, last = queries - is_near.reach[0], queries + is_near.reach[1]
    last = queries if causal else np.minimum(last, length - 1)
    first = np.maximum(first, 0)
    # Dilation leaves out keys to both sides of the query itself.
    return int(((queries - first) // dilation + (last - queries) // dilation + 1).sum())


def _source_seen(config: TransformerConfig, kind: str, source: int) -> int:
    return _features(config, kind) if kind in SUMMED else source


def _features(config: TransformerConfig, kind: str) -> int:
    return config.head_size if kind == "linear" else config.attention_features


def _attention(config: TransformerConfig, queries: int, keys: int, pairs: int) -> int:
    products = 2 * 2 * pairs * config.heads * config.head_size  # scores, and sums of values
    return _projections(config, queries, keys) + products


def _projections(config: TransformerConfig, queries: int, keys: int) -> int:
    inner_keys = config.kv_heads * config.head_size
    of_queries = config.heads * config.head_size
    return _output(config, queries) + 2 * config.width * (
        queries * of_queries + 2 * keys * inner_keys
    )


def _output(config: TransformerConfig, queries: int) -> int:
    return 2 * config.width * queries * config.heads * config.head_size


def head_flops(config: TransformerConfig, objective: str, length: int) -> int:
    """Of what the objective asks for behind the stack."""
    match objective:
        case "classify_text" | "classify_images":
            pooler = config.width**2 if config.pooler else 0
            return 2 * (pooler + config.width * config.num_classes)
        case "masked_lm":
            return 2 * length * config.width * (config.width + config.vocab_size)
    return 2 * length * config.width * config.vocab_size
