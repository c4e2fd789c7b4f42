"""Llama and its relatives: pre-norm decoders with RMSNorm, RoPE, SwiGLU and grouped queries."""

from pretrained.architecture import REQUIRED
from pretrained.decoder_parts import (
    ATTENTION_BIAS,
    ConfigPart,
    decoder,
    heads_part,
    layer_types_part,
    number_part,
    score_scale_part,
    shortest_pattern,
    tied_part,
    window_part,
)
from pretrained.layouts import At, below
from pretrained.rope_keys import rope_part

# Norms of a block by model.norm_placement.
NORMS = {
    "pre": {
        "self_attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    },
    "sandwich": {
        "self_attention_norm": "input_layernorm",
        "self_attention_norm_after": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_norm_after": "post_feedforward_layernorm",
    },
    "reordered": {
        "self_attention_norm": "post_attention_layernorm",
        "feed_forward_norm": "post_feedforward_layernorm",
    },
}


def table(model, head, ids):
    """Our modules, each with the place of its tensors in the files of Llama and its relatives."""
    del head, ids
    flat = model.qk_norm == "full"  # over all heads: their scale has one axis
    return {
        "backbone/token_embedding": "model.embed_tokens",
        **below(
            "backbone/decoder/blocks",
            "model.layers.{layer}",
            {
                **NORMS[model.norm_placement],
                "self_attention/query": "self_attn.q_proj",
                "self_attention/key": "self_attn.k_proj",
                "self_attention/value": "self_attn.v_proj",
                "self_attention/out": "self_attn.o_proj",
                "self_attention/query_norm": At("self_attn.q_norm", flat=flat),
                "self_attention/key_norm": At("self_attn.k_norm", flat=flat),
                "feed_forward/gate": "mlp.gate_proj",
                "feed_forward/in": "mlp.up_proj",
                "feed_forward/out": "mlp.down_proj",
            },
        ),
        "backbone/decoder/final_norm": "model.norm",
        "vocabulary/output": "lm_head",
        "classes": "score",
    }


STYLE = dict(
    position="rope", embedding_scale=False, norm="rmsnorm", norm_placement="pre",
    activation="swiglu", bias=False,
)  # fmt: skip
SILU = dict(hidden_act="silu")


def keys(max_length: int, epsilon: float = 1e-6, **more):
    """Our keys by theirs; `max_length` and `epsilon` are defaults."""
    return dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("intermediate_size", REQUIRED),
        max_length=("max_position_embeddings", max_length),
        norm_epsilon=("rms_norm_eps", epsilon),
        init_std=("initializer_range", 0.02),
        dropout_attention=("attention_dropout", 0.0),
        **more,
    )


# What all files of the family have in common.
FILES = dict(
    table=table,
    derived=(r"rotary_emb\.inv_freq$",),
    copies=(("lm_head.weight", "model.embed_tokens.weight"),),
)

LLAMA = decoder(
    "llama",
    "LlamaForCausalLM",
    (heads_part(kv_default=True), rope_part(), tied_part(False), ATTENTION_BIAS),
    style=STYLE,
    keys=keys(2048),
    required_values=dict(SILU, mlp_bias=False),
    # pretraining_tp computes the same matmuls in slices. The other keys only inform; they come from
    # nanotron (SmolLM) and from the first converted files.
    harmless=frozenset(("pretraining_tp", "is_llama_config", "max_sequence_length", "is_decoder")),
    neutral=dict(rope_interleaved=(False,), is_causal=(True,)),
    **FILES,
    classifier="LlamaForSequenceClassification",
)

MISTRAL = decoder(
    "mistral",
    "MistralForCausalLM",
    (heads_part(), rope_part(), tied_part(False), window_part(4096)),
    style=STYLE,
    keys=keys(4096 * 32),
    required_values=SILU,
    **FILES,
    classifier="MistralForSequenceClassification",
)


def last_layers(config, layers: int) -> list[str]:
    """Qwen's layers: windows from max_window_layers on, if there are windows."""
    first, is_on = config.get("max_window_layers", 28), config.get("use_sliding_window", False)
    is_on = is_on and config.nullable("sliding_window", 4096) is not None
    return [
        "sliding_attention" if is_on and n >= first else "full_attention" for n in range(layers)
    ]


QWEN_WINDOWS = layer_types_part(last_layers, switch="use_sliding_window")
# Read only if layer_types is missing.
QWEN_FILES = dict(
    FILES, harmless=frozenset(("max_window_layers",)), neutral=dict(use_mrope=(False,))
)

QWEN2 = decoder(
    "qwen2",
    "Qwen2ForCausalLM",
    (heads_part(), rope_part(), tied_part(False), QWEN_WINDOWS),
    style=dict(STYLE, attention_bias="qkv"),
    keys=keys(32_768),
    required_values=SILU,
    **QWEN_FILES,
    classifier="Qwen2ForSequenceClassification",
)

QWEN3 = decoder(
    "qwen3",
    "Qwen3ForCausalLM",
    (heads_part(head_size=128), rope_part(), tied_part(False), ATTENTION_BIAS, QWEN_WINDOWS),
    style=dict(STYLE, qk_norm="head"),
    keys=keys(32_768),
    required_values=SILU,
    **QWEN_FILES,
    classifier="Qwen3ForSequenceClassification",
)

OLMO2 = decoder(
    "olmo2",
    "Olmo2ForCausalLM",
    (
        heads_part(kv_default=True, head_size=None), rope_part(), tied_part(False), ATTENTION_BIAS,
    ),
    style=dict(STYLE, norm_placement="reordered", qk_norm="full"),
    keys=keys(2048, 1e-5),
    required_values=SILU,
    **FILES,
)  # fmt: skip

GRANITE = decoder(
    "granite",
    "GraniteForCausalLM",
    (
        heads_part(kv_default=True, head_size=None), rope_part(), tied_part(False), ATTENTION_BIAS,
        number_part("embedding_multiplier", "embedding_multiplier", 1.0),
        number_part("residual_multiplier", "residual_multiplier", 1.0),
        score_scale_part("attention_multiplier", 1.0),
        number_part(
            "logit_multiplier", "logits_scaling", 1.0, to_ours=lambda x: 1 / x,
            to_theirs=lambda x: 1 / x,
        ),
    ),
    style=STYLE,
    keys=keys(2048),
    required_values=dict(SILU, mlp_bias=False),
    **FILES,
)  # fmt: skip


def read_rope_layers(config):
    """SmolLM3's layers without positions: a list, or every n-th layer."""
    layers = config.size("num_hidden_layers")
    interval = config.get("no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers")  # 1: with RoPE
    if rotated is None:
        if interval < 1:
            config.refuse("no_rope_layer_interval", interval, "it must be at least 1")
        rotated = [int((n + 1) % interval != 0) for n in range(layers)]
    is_right = isinstance(rotated, list) and all(each in (0, 1) for each in rotated)
    if not is_right or len(rotated) < layers:
        config.refuse("no_rope_layers", rotated, f"it must list 0 or 1 for {layers} layers")
    pattern = tuple(map(int, shortest_pattern(rotated[:layers])))
    return dict(rope_layers=() if pattern == (1,) else pattern)


def write_rope_layers(model):
    """Their list; 1: with RoPE."""
    pattern = model.rope_layers or (1,)
    return dict(no_rope_layers=[pattern[n % len(pattern)] for n in range(model.decoder_layers)])


SMOLLM3 = decoder(
    "smollm3",
    "SmolLM3ForCausalLM",
    (
        heads_part(head_size=None), rope_part(default_theta=2_000_000.0), tied_part(True),
        ATTENTION_BIAS, ConfigPart(("rope_layers",), read_rope_layers, write_rope_layers),
        layer_types_part(
            lambda config, layers: ["full_attention"] * layers, window=None,
            switch="use_sliding_window",
        ),
    ),
    style=STYLE,
    keys=keys(32_768),
    required_values=dict(SILU, mlp_bias=False),
    harmless=frozenset(("max_window_layers",)),
    neutral=dict(pretraining_tp=(1, 2)),
    **FILES,
    classifier="SmolLM3ForSequenceClassification",
)  # fmt: skip


def phi3_table(model, head, ids):
    """Queries, keys and values are rows of one tensor, and so are the two layers before a gate."""
    ours = table(model, head, ids)
    total = model.heads + 2 * model.kv_heads
    starts = dict(query=0, key=model.heads, value=model.heads + model.kv_heads)
    layer = "model.layers.{layer}"
    for name, start in starts.items():
        path = f"backbone/decoder/blocks/self_attention/{name}"
        ours[path] = At(f"{layer}.self_attn.qkv_proj", heads=(start, total))
    for number, name in enumerate(("gate", "in")):
        path = f"backbone/decoder/blocks/feed_forward/{name}"
        ours[path] = At(f"{layer}.mlp.gate_up_proj", part=(number, 2))
    return ours


PHI3 = decoder(
    "phi3",
    "Phi3ForCausalLM",
    (
        heads_part(kv_default=True, head_size=None), rope_part(fraction="partial_rotary_factor"),
        tied_part(False), window_part(None),
    ),
    style=STYLE,
    keys=keys(
        4096, 1e-5, dropout_residual=("resid_pdrop", 0.0),
    ),
    dropout=("attention", "residual"),
    required_values=dict(SILU, attention_bias=False),
    # Not applied in transformers.
    harmless=frozenset(("embd_pdrop",)),
    **dict(FILES, table=phi3_table),
    classifier="Phi3ForSequenceClassification",
)  # fmt: skip
