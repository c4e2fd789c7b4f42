"""Relatives of Llama whose feed-forward layers are mixtures of experts: Mixtral, Qwen 3 MoE and
gpt-oss.
"""

import dataclasses

from model.layers import CLAMPED_SLOPE
from pretrained.decoder_parts import (
    ATTENTION_BIAS,
    ConfigPart,
    bool_part,
    decoder,
    heads_part,
    layer_types_part,
    number_part,
    tied_part,
    window_part,
)
from pretrained.layouts import At, below
from pretrained.llama import FILES, SILU, STYLE, keys, table
from pretrained.rope_keys import rope_part, scaling_of

# Keys that change nothing but losses of transformers' own training.
LOSSES = frozenset(("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"))


def experts_table(layer: str, gate: str, inner: str, outer: str):
    """Llama's table with experts; the names are theirs, of the layer and of an expert's three."""

    def with_experts(model, head, ids):
        modules = {
            path: at for path, at in table(model, head, ids).items() if "/feed_forward/" not in path
        }
        one = f"{layer}.experts.{{expert}}"
        return modules | below(
            "backbone/decoder/blocks/feed_forward",
            "model.layers.{layer}",
            {
                "router": f"{layer}.gate",
                "experts/gate": f"{one}.{gate}",
                "experts/in": f"{one}.{inner}",
                "experts/out": f"{one}.{outer}",
            },
        )

    return dict(FILES, table=with_experts)


MIXTRAL = decoder(
    "mixtral",
    "MixtralForCausalLM",
    (heads_part(), rope_part(default_theta=1_000_000.0), tied_part(False), window_part(None)),
    style=dict(STYLE, router_renormalise=True),
    keys=keys(
        4096 * 32, 1e-5, experts=("num_local_experts", 8),
        experts_per_token=("num_experts_per_tok", 2),
    ),
    required_values=SILU,
    harmless=LOSSES,
    aliases=dict(num_experts="num_local_experts"),
    **experts_table("block_sparse_moe", "w1", "w3", "w2"),
    classifier="MixtralForSequenceClassification",
)  # fmt: skip

QWEN3_MOE = decoder(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    (
        heads_part(), rope_part(), tied_part(False), ATTENTION_BIAS,
        window_part(4096, switch="use_sliding_window"),
        bool_part("router_renormalise", "norm_topk_prob", False),
    ),
    style=dict(STYLE, qk_norm="head"),
    keys=keys(
        32_768, experts=("num_experts", 128), experts_per_token=("num_experts_per_tok", 8),
    )
    | dict(feed_forward=("moe_intermediate_size", 768)),
    # Other values give some layers no experts.
    required_values=dict(SILU, decoder_sparse_step=1, mlp_only_layers=[]),
    # The size of layers without experts; and a key that no layer reads.
    harmless=LOSSES | {"intermediate_size", "max_window_layers"},
    aliases=dict(num_local_experts="num_experts"),
    **experts_table("mlp", "gate_proj", "up_proj", "down_proj"),
    classifier="Qwen3MoeForSequenceClassification",
)  # fmt: skip


GPT_OSS_ROPE = rope_part(default_theta=150_000.0)


def read_gpt_oss_rope(config):
    """YaRN, which a config without any scaling has with the numbers of the published models."""
    ours = GPT_OSS_ROPE.read(config)
    if scaling_of(config):
        return ours
    yarn = dict(rope_factor=32.0, rope_low_frequency=1.0, rope_high_frequency=32.0)
    return ours | yarn | dict(
        rope_scaling="yarn", rope_original_length=4096, rope_attention_factor=0.0,
        rope_truncate=False,
    )  # fmt: skip


def write_gpt_oss_rope(model):
    """With an object also for no scaling, because without one it would be the default's."""
    theirs = GPT_OSS_ROPE.write(model)
    return theirs | dict(rope_scaling=theirs["rope_scaling"] or dict(rope_type="default"))


def gpt_oss_table(model, head, ids):
    """All experts are in one tensor, with kernels as here; gates alternate with what they gate."""
    modules = {
        path: at for path, at in table(model, head, ids).items() if "/feed_forward/" not in path
    }
    gate_up = At("mlp.experts.gate_up_proj", endings=("", "_bias"), in_turns=(0, 2))
    return modules | below(
        "backbone/decoder/blocks",
        "model.layers.{layer}",
        {
            "self_attention": At("self_attn.sinks", is_tensor=True),
            "feed_forward/router": "mlp.router",
            "feed_forward/experts/gate": gate_up,
            "feed_forward/experts/in": dataclasses.replace(gate_up, in_turns=(1, 2)),
            "feed_forward/experts/out": At("mlp.experts.down_proj", endings=("", "_bias")),
        },
    )


GPT_OSS = decoder(
    "gpt_oss",
    "GptOssForCausalLM",
    (
        heads_part(head_size=64), tied_part(False),
        ConfigPart(GPT_OSS_ROPE.ours, read_gpt_oss_rope, write_gpt_oss_rope),
        layer_types_part(
            lambda config, layers: [
                "full_attention" if n % 2 else "sliding_attention" for n in range(layers)
            ],
            window=128,
        ),
        number_part("activation_limit", "swiglu_limit", 7.0),
    ),
    style=dict(
        STYLE, activation="swiglu_clamped", bias=True, attention_sinks=True, router_bias=True,
    ),
    keys=keys(
        131_072, 1e-5, experts=("num_local_experts", 128),
        experts_per_token=("num_experts_per_tok", 4),
    ),
    required_values=dict(SILU, swiglu_alpha=CLAMPED_SLOPE, attention_bias=True),
    # A second name, and the length before the scaling, which transformers reads elsewhere.
    harmless=LOSSES | {"experts_per_token", "initial_context_length"},
    aliases=dict(num_experts="num_local_experts"),
    **dict(FILES, table=gpt_oss_table),
    classifier="GptOssForSequenceClassification",
)  # fmt: skip
