"""FLOPs of a training step, counted from the architecture.

Attention counts the query-key pairs that its mask allows: about half of all pairs in a causal
model, fewer in a window. MaxText counts the same way. The formulas of PaLM and nanoGPT count all
pairs, so they report more FLOPs and a higher MFU for the same speed.
"""

from collections.abc import Mapping

from jax.typing import ArrayLike

from input_pipeline.objectives import OBJECTIVES
from model.attention import KINDS
from model.config import TransformerConfig
from model.layers import GATED
from model.mixers import ATTENTION, MIXERS
from training.config import TaskConfig


def forward_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Returns the FLOPs of the forward pass on one row.

    Only matmuls count, with two operations per multiply-add. The row is one text without padding.
    A prefix counts as causal. Global tokens do not count, since their number depends on the data.
    `length` is that of the decoder or the only stack; `source`, of the encoder.
    """
    encoder_length = source if config.family == "encoder_decoder" else length
    total = 0
    if config.has_encoder:
        for layer in range(config.encoder_layers):
            total += _block(config, layer, encoder_length, causal=False)
    if config.has_decoder:
        for layer in range(config.decoder_layers):
            total += _block(config, layer, length, causal=True)
            if config.has_cross_attention:
                kind = KINDS[config.attention_kind(layer)]
                pairs = kind.cross_pairs(config, length, source)
                total += _attention(config, length, source, pairs)
    if config.embedding_size:
        total += 2 * length * config.embedding_size * config.width
    if config.has_context_vector:
        total += 2 * length * config.width**2
    if config.input == "patches":
        total += 2 * length * config.values_per_patch * config.width
    return total + head_flops(config, OBJECTIVES[objective].head, length)


def train_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Returns the FLOPs of forward and backward on one row; backward has two matmuls for each."""
    return 3 * forward_flops(config, objective, length, source)


def row_flops(
    config: TransformerConfig,
    task: TaskConfig,
    batch: Mapping[str, ArrayLike],
    teacher: TransformerConfig | None = None,
) -> int:
    """Returns the FLOPs of a training step per row of a batch with the shapes of this one.

    The backward pass counts in full, even if parameters are frozen.
    """
    is_patched = config.input == "patches"
    length = config.patch_tokens if is_patched else batch["inputs"].shape[1]
    source = batch["encoder_inputs"].shape[1] if "encoder_inputs" in batch else 0
    total = train_flops(config, task.objective, length, source)
    if "predicted" in batch:  # the head computes few positions
        head, predicted = OBJECTIVES[task.objective].head, batch["predicted"].shape[1]
        at_all, here = (head_flops(config, head, n) for n in (length, predicted))
        total -= 3 * (at_all - here)
    if OBJECTIVES[task.objective].head == "forecaster":  # one quantile is counted above
        total += 3 * (len(task.quantiles) - 1) * head_flops(config, "forecaster", length)
    if task.auxiliary_masked_lm:
        total += 3 * head_flops(config, "masked_language_model", length)
    if teacher is not None:
        total += forward_flops(teacher, task.objective, length, source)
    return total


def _block(config: TransformerConfig, layer: int, length: int, causal: bool) -> int:
    matrices = {"mlp": 3 if config.activation in GATED else 2, "linear": 2, "none": 0}[
        config.feed_forward_kind
    ]
    feed_forward = 2 * length * matrices * config.width * config.feed_forward
    if config.experts:  # those that a token uses, whether a full one drops it or not
        feed_forward *= config.experts_per_token + config.shared_experts
        feed_forward += 2 * length * config.width * config.experts
    if config.mixer != ATTENTION:
        return MIXERS[config.mixer].flops(config, length, causal) + feed_forward
    kind = KINDS[config.attention_kind(layer)]
    attention = _attention(config, length, length, kind.pairs(config, length, causal=causal))
    # Extra projections, such as those for global tokens, are computed for all tokens.
    extra = _projections(config, length, length) - _output(config, length)
    if config.share_qk:  # self-attention reads the keys off the queries
        shared = _output(config, length)
        return attention - shared + len(kind.extra_qkv) * (extra - shared) + feed_forward
    return attention + len(kind.extra_qkv) * extra + feed_forward


def _attention(config: TransformerConfig, queries: int, keys: int, pairs: int) -> int:
    matmuls = 2 * 2 * pairs * config.heads * config.head_size  # scores, and sums of values
    return _projections(config, queries, keys) + matmuls


def _projections(config: TransformerConfig, queries: int, keys: int) -> int:
    inner_keys = config.kv_heads * config.head_size
    of_queries = config.heads * config.head_size
    return _output(config, queries) + 2 * config.width * (
        queries * of_queries + 2 * keys * inner_keys
    )


def _output(config: TransformerConfig, queries: int) -> int:
    return 2 * config.width * queries * config.heads * config.head_size


def head_flops(config: TransformerConfig, head: str, length: int) -> int:
    """Returns the FLOPs of an objective's head on one row."""
    pooler = config.pooled_width * config.width if config.pooler else 0
    pooled = config.width if config.pooler else config.pooled_width
    match head:
        case "classifier":
            heads = 2 if config.distillation == "head" else 1
            return 2 * (pooler + heads * pooled * config.num_classes)
        case "regressor":
            return 2 * (pooler + pooled)
        case "token_classifier":
            pooler = config.width**2 if config.pooler else 0
            return 2 * length * (pooler + config.width * config.num_classes)
        case "span":
            pooler = config.width**2 if config.pooler else 0
            return 2 * length * (pooler + config.width * 2)
        case "forecaster":  # of one quantile
            return 2 * pooled * config.horizon + 2 * pooler
        case "masked_language_model":
            return 2 * length * config.embedding_width * (config.width + config.vocab_size)
    return 2 * length * config.width * config.vocab_size
