"""Relatives of Llama whose feed-forward layers are mixtures of experts: Mixtral, Qwen 3 MoE."""

from pretrained.decoder_parts import (
    ATTENTION_BIAS,
    bool_part,
    decoder,
    heads_part,
    tied_part,
    window_part,
)
from pretrained.layouts import below
from pretrained.llama import FILES, SILU, STYLE, keys, table
from pretrained.rope_keys import rope_part

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
