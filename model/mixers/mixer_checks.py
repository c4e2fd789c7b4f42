"""Checks of the keys model.mixer and model.bridge, and of keys that have no effect beside them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiment.schema import did_you_mean
from model.attention import KINDS
from model.mixers import ATTENTION, MIXERS, mixer_refusals
from model.positions import ABSOLUTE_POSITIONS

if TYPE_CHECKING:
    from model.config import TransformerConfig

# Keys that only attention reads, and the values that ask for nothing.
ATTENTION_KEYS = dict(
    attention=next(iter(KINDS)),
    kv_heads=0,
    attention_scale=True,
    attention_multiplier=0.0,
    attention_bias="default",
    score_cap=0.0,
    attention_sinks=False,
    qk_norm="none",
    attention_scale_init=True,
    share_qk=False,
    attention_options=(),
    dropout_attention=0.0,
)


def mixer_problems(config: "TransformerConfig") -> Iterator[str]:
    """Yields what is wrong with the mixer and the bridge of a config."""
    if config.bridge != "attention" and config.family != "encoder_decoder":
        yield (
            f"model.bridge={config.bridge} leads from an encoder to a decoder, but "
            f"family={config.family} has only one of them; set it to attention"
        )
    known = () if config.mixer == ATTENTION else MIXERS[config.mixer].options
    unknown = [option for option, _ in config.mixer_options if option not in known]
    for option in unknown:
        yield (
            f"model.mixer_options: {option!r} is not an option of {config.mixer}."
            f"{did_you_mean(option, known)} There are: {', '.join(known) or 'none'}"
        )
    if config.mixer == ATTENTION:
        return
    if config.position not in (*ABSOLUTE_POSITIONS, "none"):
        yield (
            f"model.position={config.position} acts inside self-attention, which "
            f"model.mixer={config.mixer} replaces; choose {', '.join(ABSOLUTE_POSITIONS)} or none"
        )
    if config.relative_bias:
        yield (
            "model.relative_bias=True acts inside self-attention, which "
            f"model.mixer={config.mixer} replaces; set it to False"
        )
    asked = {"two_sided": config.has_encoder, "quantized": config.matmul != "float"}
    for feature in (name for name, is_asked in asked.items() if is_asked):
        for reason in mixer_refusals(config.mixer, feature):
            remedy = "model.matmul=float" if feature == "quantized" else "model.family=decoder"
            yield f"{reason}; set {remedy}, or choose another mixer"
    if not config.has_attention:
        yield from _keys_without_effect(config)
    if not unknown:
        yield from MIXERS[config.mixer].problems(config)


def _keys_without_effect(config: "TransformerConfig") -> Iterator[str]:
    other = f"model.family={config.family}"
    if config.family == "encoder_decoder":
        other = f"model.bridge={config.bridge}"
    for key, off in ATTENTION_KEYS.items():
        value = getattr(config, key)
        if value != off and (key, value) != ("kv_heads", config.heads):
            yield (
                f"model.{key}={value} does nothing: with model.mixer={config.mixer} and {other}, "
                f"no layer attends; set it to {off}"
            )
