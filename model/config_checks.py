"""Checks of the `model` section: values, and combinations of values, that cannot work."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiment.schema import did_you_mean
from model.attention import KINDS, pattern_of, refusals
from model.block_checks import block_problems, rope_problems
from model.mixers import ATTENTION
from model.mixers.mixer_checks import mixer_problems

if TYPE_CHECKING:
    from model.config import TransformerConfig

MOST_PIXELS = 2**28  # numbers of an image: 1 GiB in float32


def model_problems(config: "TransformerConfig") -> Iterator[str]:
    """Yields a message for each value, or combination of values, that cannot work."""
    yield from _size_problems(config)
    yield from _position_problems(config)
    yield from rope_problems(config)
    yield from mixer_problems(config)
    yield from _attention_problems(config)
    yield from block_problems(config)
    yield from _ablation_problems(config)
    yield from _parametrization_problems(config)
    yield from _family_problems(config)
    yield from _image_problems(config)


def _size_problems(config: "TransformerConfig") -> Iterator[str]:
    if not config.head_size and config.width % config.heads:
        yield (
            f"model.heads={config.heads} does not divide model.width={config.width}; "
            "change one, or set model.head_size"
        )
    if config.kv_heads and config.heads % config.kv_heads:
        yield (
            f"model.kv_heads={config.kv_heads} does not divide model.heads={config.heads}; "
            "each group of query heads shares one key/value head"
        )
    stacks = {
        "encoder_layers": config.encoder_layers if config.has_encoder else 0,
        "decoder_layers": config.decoder_layers if config.has_decoder else 0,
    }
    for key, layers in stacks.items():
        if config.layer_groups and layers % config.layer_groups:
            yield (
                f"model.layer_groups={config.layer_groups} does not divide model.{key}={layers}; "
                "groups have equally many layers"
            )
    if config.has_encoder and not config.encoder_layers:
        yield f"model.encoder_layers=0, but family={config.family} needs at least 1"
    if config.has_decoder and not config.decoder_layers:
        yield f"model.decoder_layers=0, but family={config.family} needs at least 1"


def _position_problems(config: "TransformerConfig") -> Iterator[str]:
    head_size = config.head_size or config.width // config.heads
    if config.position == "rope" and head_size % 2:
        yield (
            "model.position=rope rotates pairs of columns, so the head size must be even, "
            f"not {head_size}; set model.head_size"
        )
    for key, usual in (("sinusoidal_variant", "paper"), ("sinusoidal_offset", 0)):
        if (value := getattr(config, key)) != usual and config.position != "sinusoidal":
            yield (
                f"model.{key}={value} is for model.position=sinusoidal, not {config.position}; set "
                f"it to {usual}"
            )
    if config.sinusoidal_variant == "tensor2tensor" and config.embedding_width < 4:
        yield "model.sinusoidal_variant=tensor2tensor needs a width of at least 4; set it to paper"
    if config.position in ("sinusoidal", "transformer_xl") and config.width % 2:
        yield (
            f"model.position={config.position} has a sine and a cosine for each frequency, so "
            f"model.width={config.width} must be even"
        )
    if config.relative_bias and config.position in ("t5_bias", "alibi", "transformer_xl"):
        yield (
            f"model.relative_bias=True adds T5's bias to another position scheme than "
            f"{config.position}; set it to False"
        )
    if config.own_relative_bias and not config.has_relative_bias:
        yield (
            "model.own_relative_bias=True needs model.position=t5_bias or "
            "model.relative_bias=True; set it to False"
        )
    if config.has_relative_bias:
        smallest = 4 if config.has_encoder else 2
        if config.relative_buckets < smallest or config.relative_buckets % smallest:
            yield (
                f"model.relative_buckets={config.relative_buckets} must be a multiple of "
                f"{smallest} for family={config.family}"
            )
        elif config.relative_max_distance <= config.relative_buckets // 2:
            yield (
                f"model.relative_max_distance={config.relative_max_distance} must exceed half of "
                f"model.relative_buckets={config.relative_buckets}"
            )


def _attention_problems(config: "TransformerConfig") -> Iterator[str]:
    unknown = [kind for kind in pattern_of(config.attention) if kind not in KINDS]
    for kind in unknown:
        yield (
            f"model.attention={config.attention!r}: {kind!r} is not one of: {', '.join(KINDS)}."
            f"{did_you_mean(kind, KINDS)}"
        )
    if unknown:
        return
    asked = {
        "two_sided": config.has_encoder and config.mixer == ATTENTION,
        "cross": config.has_cross_attention,
        "dropout": config.dropout_attention > 0,
        "bias": config.position == "alibi" or config.has_relative_bias,
        "relative": config.position == "transformer_xl",
        "cap": config.score_cap > 0,
        "sinks": config.attention_sinks,
    }
    remedies = {
        "two_sided": "set model.family=decoder",
        "cross": "set model.family=decoder",
        "dropout": "set it to 0",
        "bias": "choose another position",
        "relative": "choose another position",
        "cap": "set it to 0",
        "sinks": "set it to False",
    }
    for feature, is_asked in asked.items():
        if is_asked:
            for reason in refusals(config.attention, feature):
                yield f"{reason}; {remedies[feature]}, or choose another kind"
    if config.position == "transformer_xl" and config.has_encoder:
        yield (
            "model.position=transformer_xl encodes distances to earlier keys only, but the "
            f"encoder of family={config.family} also sees later keys; choose another position"
        )
    kinds = {name: KINDS[name] for name in pattern_of(config.attention)}
    known = [option for kind in kinds.values() for option in kind.options]
    for option, _ in config.attention_options:
        if option not in known:
            yield (
                f"model.attention_options: {option!r} is not an option of "
                f"{', '.join(kinds)}.{did_you_mean(option, known)} "
                f"There are: {', '.join(known) or 'none'}"
            )
    for kind in kinds.values():
        yield from kind.problems(config)


def _parametrization_problems(config: "TransformerConfig") -> Iterator[str]:
    bases = ("mup_base_width", "mup_base_head_size")
    if config.parametrization == "mup" and not config.mup_base_width:
        yield (
            "model.parametrization=mup needs the width that the learning rate was tuned for; "
            "set model.mup_base_width"
        )
    for key in bases if config.parametrization == "standard" else ():
        if value := getattr(config, key):
            yield (
                f"model.{key}={value} does nothing with model.parametrization=standard; "
                "choose mup, or set it to 0"
            )


def _ablation_problems(config: "TransformerConfig") -> Iterator[str]:
    if config.attention_scale and not config.attention_scale_init:
        yield (
            "model.attention_scale_init=False does nothing with model.attention_scale=True; "
            "set one of them to the other value"
        )
    if config.share_qk and config.kv_heads not in (0, config.heads):
        yield (
            f"model.share_qk=True gives every query head its own keys, so model.kv_heads="
            f"{config.kv_heads} must be model.heads={config.heads}; set it to 0"
        )


def _family_problems(config: "TransformerConfig") -> Iterator[str]:
    if config.token_types and config.family != "encoder":
        yield (
            f"model.token_types={config.token_types} tells an encoder's two sentences apart; "
            f"family={config.family} has no use for it; set it to 0"
        )
    if config.embedding_size and (
        config.family != "encoder" or config.input == "patches" or config.embedding_scale
    ):
        yield (
            f"model.embedding_size={config.embedding_size} is for the tokens of model.family="
            "encoder with model.embedding_scale=False; set it to 0"
        )
    if config.token_dropout and (config.family != "encoder" or config.input == "patches"):
        yield (
            "model.token_dropout=True is for the masked tokens of model.family=encoder with "
            "model.input=tokens; set it to False"
        )
    if config.output_scale and not config.tie_output:
        yield (
            "model.output_scale=True undoes the scale of a tied table; "
            "with model.tie_output=False set it to False"
        )


def _image_problems(config: "TransformerConfig") -> Iterator[str]:
    if config.input == "tokens":
        for key in ("input_shape", "input_mean", "input_std"):
            if value := getattr(config, key):
                yield f"model.{key}={value} is for model.input=patches; set it to ()"
        for key, off in (("distillation", "none"), ("position_image_size", 0)):
            if (value := getattr(config, key)) != off:
                yield f"model.{key}={value} is for model.input=patches; set it to {off}"
        return
    shape = config.input_shape
    if shape and len(shape) not in (2, 3):
        yield (
            f"model.input_shape={shape} must be one or two axes to cut into patches, and the "
            "number of channels, such as (96, 1) or (128, 64, 1); () takes the data's"
        )
    if any(size % config.patch_size for size in shape[:-1]):
        yield f"model.patch_size={config.patch_size} does not divide model.input_shape={shape}"
    for key in ("input_mean", "input_std"):
        value = getattr(config, key)
        if shape and len(value) not in (0, 1, shape[-1]):
            yield (
                f"model.{key}={value} must be one number, or one for each of the {shape[-1]} "
                "channels of model.input_shape"
            )
    if config.family != "encoder":
        yield (
            f"model.input=patches needs family=encoder, not {config.family}: "
            "patches are encoded, not generated"
        )
    pixels = config.image_size**2 * config.image_channels
    if pixels > MOST_PIXELS:
        yield (
            f"model.image_size={config.image_size} with model.image_channels="
            f"{config.image_channels} makes an image of {pixels:,} numbers; {MOST_PIXELS:,} are "
            "the most"
        )
    if config.token_types:
        yield f"model.token_types={config.token_types} needs model.input=tokens"
    if config.embedding_scale:
        yield "model.embedding_scale=True scales token embeddings and needs model.input=tokens"
    if config.pooling in ("first", "first_mean") and not config.class_token:
        yield (
            f"model.pooling={config.pooling} reads the class token; "
            "set model.class_token=True or model.pooling=mean"
        )
    if config.distillation != "none" and not config.class_token:
        yield (
            f"model.distillation={config.distillation} adds a token behind the class token; set "
            "model.class_token=True, or it to none"
        )
    if config.distillation == "head" and (config.pooling != "first" or config.pooler):
        yield (
            "model.distillation=head is a second classifier like that of the class token; set "
            "model.pooling=first and model.pooler=False, or it to token"
        )
    if config.position_image_size:
        given = f"model.position_image_size={config.position_image_size}"
        if config.position != "learned" or shape:
            yield f"{given} is for images with model.position=learned; set it to 0"
        elif config.position_image_size % config.patch_size:
            yield f"model.patch_size={config.patch_size} does not divide {given}"
        elif config.position_rows > config.max_length:
            yield (
                f"{given} makes {config.position_rows} tokens, more than model.max_length="
                f"{config.max_length}; raise that"
            )
    if config.image_size % config.patch_size:
        yield (
            f"model.patch_size={config.patch_size} does not divide "
            f"model.image_size={config.image_size}"
        )
