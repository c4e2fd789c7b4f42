"""How much arithmetic a training step is, counted from the architecture alone."""

from model.config import TransformerConfig
from model.layers import GATED


def forward_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Floating-point operations of the forward pass on one row.

    Counts matrix products alone, two operations for each multiplication and addition, with
    attention as if nothing were masked. `length` is that of the decoder or only side.
    """
    encoder_length = source if config.family == "encoder_decoder" else length
    total = 0
    if config.has_encoder:
        block = _block(config, encoder_length)
        total += config.encoder_layers * block
    if config.has_decoder:
        block = _block(config, length)
        if config.family == "encoder_decoder":
            block += _attention(config, length, source)
        total += config.decoder_layers * block
    if config.input == "patches":
        values = config.patch_size**2 * config.image_channels
        total += 2 * length * values * config.width
    return total + head_flops(config, objective, length)


def train_flops(config: TransformerConfig, objective: str, length: int, source: int = 0) -> int:
    """Forward and backward on one row: the backward pass takes two products for each one."""
    return 3 * forward_flops(config, objective, length, source)


def _block(config: TransformerConfig, length: int) -> int:
    matrices = 3 if config.activation in GATED else 2
    feed_forward = 2 * length * matrices * config.width * config.feed_forward
    return _attention(config, length, length) + feed_forward


def _attention(config: TransformerConfig, queries: int, keys: int) -> int:
    inner = config.heads * config.head_size
    inner_keys = config.kv_heads * config.head_size
    projections = 2 * config.width * (2 * queries * inner + 2 * keys * inner_keys)
    return projections + 2 * 2 * queries * keys * inner


def head_flops(config: TransformerConfig, objective: str, length: int) -> int:
    """Of what the objective asks for behind the stack."""
    match objective:
        case "classify_text" | "classify_images":
            pooler = config.width**2 if config.pooler else 0
            return 2 * (pooler + config.width * config.num_classes)
        case "masked_lm":
            return 2 * length * config.width * (config.width + config.vocab_size)
    return 2 * length * config.width * config.vocab_size
