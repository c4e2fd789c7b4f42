"""Cohere, StableLM and StarCoder 2: Llama's names with LayerNorm, and parallel layers in two."""

import dataclasses

from pretrained.architecture import ACTIVATIONS
from pretrained.decoder_parts import (
    ATTENTION_BIAS,
    activation_part,
    bool_part,
    decoder,
    heads_part,
    number_part,
    tied_part,
    window_part,
)
from pretrained.layouts import At
from pretrained.llama import FILES, SILU, STYLE, keys, table
from pretrained.rope_keys import rope_part

LAYERNORM = dict(STYLE, norm="layernorm")
BLOCKS = "backbone/decoder/blocks"


def layernorm_keys(max_length: int, key: str = "layer_norm_eps", **more):
    """Our keys by theirs, with the key of LayerNorm's epsilon."""
    return keys(max_length) | dict(norm_epsilon=(key, 1e-5)) | more


def cohere_table(model, head, ids):
    """RoPE pairs neighbouring columns there, so the columns of queries and keys are permuted."""
    ours = dict(table(model, head, ids))
    for name in ("query", "key", "query_norm", "key_norm"):
        entry = ours[f"{BLOCKS}/self_attention/{name}"]
        entry = At(entry) if isinstance(entry, str) else entry
        ours[f"{BLOCKS}/self_attention/{name}"] = dataclasses.replace(entry, interleaved=True)
    return ours


COHERE = decoder(
    "cohere",
    "CohereForCausalLM",
    (
        heads_part(kv_default=True, head_size=None), rope_part(default_theta=500_000.0),
        tied_part(True), ATTENTION_BIAS,
        number_part("logit_multiplier", "logit_scale", 0.0625, off=1.0),
        bool_part("qk_norm", "use_qk_norm", False, ("none", "heads")),
    ),
    style=dict(LAYERNORM, parallel_residual="one_norm"),
    keys=layernorm_keys(8192),
    required_values=SILU,
    **dict(FILES, table=cohere_table),
)  # fmt: skip

STABLELM = decoder(
    "stablelm",
    "StableLmForCausalLM",
    (
        heads_part(head_size=None),
        rope_part(fraction="partial_rotary_factor", default_fraction=0.25),
        tied_part(False),
        bool_part("attention_bias", "use_qkv_bias", False, ("default", "qkv")),
        bool_part("parallel_residual", "use_parallel_residual", False, ("none", "one_norm")),
    ),
    style=dict(LAYERNORM, norm_bias=True),
    keys=layernorm_keys(4096),
    # Its norms of queries and keys are one tensor for each head; its dropout leaves out attention.
    required_values=dict(SILU, qk_layernorm=False, hidden_dropout=0.0),
    **FILES,
    classifier="StableLmForSequenceClassification",
)


def starcoder2_table(model, head, ids):
    """A feed-forward layer without a gate."""
    names = {"in": "c_fc", "out": "c_proj"}
    layer = "model.layers.{layer}.mlp"
    return dict(table(model, head, ids)) | {
        f"{BLOCKS}/feed_forward/{ours}": f"{layer}.{theirs}" for ours, theirs in names.items()
    }


STARCODER2 = decoder(
    "starcoder2",
    "Starcoder2ForCausalLM",
    (
        heads_part(head_size=None), rope_part(), tied_part(True), window_part(None),
        activation_part("hidden_act", "gelu_pytorch_tanh", ACTIVATIONS),
    ),
    style={key: v for key, v in LAYERNORM.items() if key != "activation"} | dict(bias=True),
    dropout=("attention", "residual", "embedding"),
    keys=layernorm_keys(
        4096, "norm_epsilon", init_std=("initializer_range", 0.018042),
        dropout_residual=("residual_dropout", 0.0), dropout_embedding=("embedding_dropout", 0.0),
    ),
    required_values=dict(use_bias=True),
    **dict(FILES, table=starcoder2_table),
    classifier="Starcoder2ForSequenceClassification",
)  # fmt: skip
