"""Gemma 1, 2 and 3 (text): Llama's layout with scaled embeddings and zero-centred norms.

Gemma 2 and 3 have norms before and after each layer, and windows in some layers. Gemma 2 caps
scores and logits; Gemma 3 normalises queries and keys, and has two RoPE bases.
"""

from pretrained.architecture import MisfitError
from pretrained.decoder_parts import (
    ATTENTION_BIAS,
    ConfigPart,
    decoder,
    heads_part,
    layer_types_part,
    number_part,
    score_scale_part,
    tied_part,
)
from pretrained.llama import FILES, STYLE, keys
from pretrained.rope_keys import rope_part, two_ropes_part

GEMMA_STYLE = dict(STYLE, embedding_scale=True, norm_zero_centered=True, activation="geglu_tanh")
# Attention to both sides; and caches, none of which changes a result.
NEUTRAL = dict(
    use_bidirectional_attention=(False,), is_causal=(True,),
    cache_implementation=("hybrid", "static", "dynamic", "sliding_window"),
)  # fmt: skip


def _gemma_activation(config):
    """`gelu` in Gemma 1 stands for the tanh approximation, as in transformers."""
    config.translate("hidden_act", dict(gelu=0, gelu_pytorch_tanh=0), "gelu_pytorch_tanh")
    return {}


GEMMA = decoder(
    "gemma",
    "GemmaForCausalLM",
    (
        heads_part(head_size=256), rope_part(), tied_part(True), ATTENTION_BIAS,
        ConfigPart((), _gemma_activation, lambda model: dict(hidden_act="gelu_pytorch_tanh")),
    ),
    style=GEMMA_STYLE,
    keys=keys(8192),
    required_values={},
    neutral=dict(NEUTRAL, hidden_activation=("gelu_pytorch_tanh",)),
    **FILES,
    classifier="GemmaForSequenceClassification",
)  # fmt: skip


def _alternating(config, layers: int) -> list[str]:
    return ["full_attention" if n % 2 else "sliding_attention" for n in range(layers)]


def _every_nth_full(config, layers: int) -> list[str]:
    period = config.get("sliding_window_pattern", 6)
    if period < 1:
        config.refuse("sliding_window_pattern", period, "it must be at least 1")
    return ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(layers)]


def _scalar(multiplier: float) -> int:
    """query_pre_attn_scalar, which is a whole number, from the factor on the scores."""
    scalar = max(round(multiplier**-2), 1)
    if abs(scalar**-0.5 - multiplier) > 1e-6 * multiplier:
        raise MisfitError(
            f"needs a model.attention_multiplier of n ** -0.5, where n is a whole number, "
            f"not {multiplier:g}"
        )
    return scalar


MULTIPLIER = score_scale_part(
    "query_pre_attn_scalar", 256, to_ours=lambda x: x**-0.5, to_theirs=_scalar
)
TANH = dict(hidden_activation="gelu_pytorch_tanh")

GEMMA2 = decoder(
    "gemma2",
    "Gemma2ForCausalLM",
    (
        heads_part(head_size=256), rope_part(), tied_part(True), ATTENTION_BIAS, MULTIPLIER,
        layer_types_part(_alternating),
        number_part("score_cap", "attn_logit_softcapping", 50.0, off=0.0),
        number_part("logit_cap", "final_logit_softcapping", 30.0, off=0.0),
    ),
    style=dict(GEMMA_STYLE, norm_placement="sandwich"),
    keys=keys(8192),
    required_values=TANH,
    harmless=frozenset(("hidden_act",)),  # not read: hidden_activation is
    neutral=NEUTRAL,
    **FILES,
    classifier="Gemma2ForSequenceClassification",
)  # fmt: skip


ROPES = two_ropes_part(full=("rope_theta", 1_000_000.0), local=("rope_local_base_freq", 10_000.0))


def _read_no_score_cap(config):
    """transformers reads the key and does not apply it."""
    if cap := config.get("attn_logit_softcapping"):
        config.refuse("attn_logit_softcapping", cap, "transformers does not apply it; set it null")
    return {}


GEMMA3 = decoder(
    "gemma3_text",
    "Gemma3ForCausalLM",
    (
        heads_part(head_size=256), tied_part(True), ATTENTION_BIAS, MULTIPLIER,
        ROPES,
        layer_types_part(_every_nth_full),
        ConfigPart((), _read_no_score_cap, lambda model: dict(attn_logit_softcapping=None)),
        number_part("logit_cap", "final_logit_softcapping", None, off=0.0),
    ),
    style=dict(GEMMA_STYLE, norm_placement="sandwich", qk_norm="head"),
    keys=keys(131_072),
    required_values=TANH,
    # The pattern is read only if layer_types is missing.
    harmless=frozenset(("sliding_window_pattern", "_sliding_window_pattern")),
    neutral=NEUTRAL,
    **FILES,
    classifier="Gemma3TextForSequenceClassification",
)  # fmt: skip
