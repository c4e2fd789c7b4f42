"""Llama: a pre-norm decoder with RMSNorm, RoPE, SwiGLU and grouped-query attention."""

from pretrained.architecture import REQUIRED, Architecture, Head, MisfitError
from pretrained.layouts import below

ORIGINAL_LENGTH = "original_max_position_embeddings"
# Kind of RoPE scaling -> {our key: their key}.
ROPE_FACTORS = {
    "default": {},
    "linear": dict(rope_factor="factor"),
    "llama3": dict(
        rope_factor="factor",
        rope_low_frequency="low_freq_factor",
        rope_high_frequency="high_freq_factor",
        rope_original_length=ORIGINAL_LENGTH,
    ),
}


def table(model, head, ids):
    del model, head, ids
    return {
        "backbone/token_embedding": "model.embed_tokens",
        **below(
            "backbone/decoder/blocks",
            "model.layers.{layer}",
            {
                "self_attention_norm": "input_layernorm",
                "self_attention/query": "self_attn.q_proj",
                "self_attention/key": "self_attn.k_proj",
                "self_attention/value": "self_attn.v_proj",
                "self_attention/out": "self_attn.o_proj",
                "feed_forward_norm": "post_attention_layernorm",
                "feed_forward/gate": "mlp.gate_proj",
                "feed_forward/in": "mlp.up_proj",
                "feed_forward/out": "mlp.down_proj",
            },
        ),
        "backbone/decoder/final_norm": "model.norm",
        "vocabulary/output": "lm_head",
    }


def read_rope(config):
    """Our RoPE keys. transformers 4 writes rope_theta and rope_scaling, 5 rope_parameters."""
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    scaling = scaling or parameters or {}  # rope_scaling first, as in transformers
    if not isinstance(scaling, dict):
        config.refuse("rope_scaling", scaling, "it must be an object")
    top_theta, top_length = config.get("rope_theta", 10_000.0), config.get(ORIGINAL_LENGTH)
    theta = scaling.get("rope_theta", top_theta)
    if top_length is not None:
        scaling = scaling | {ORIGINAL_LENGTH: top_length}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_FACTORS:
        config.refuse("rope_type", kind, f"supported are: {', '.join(ROPE_FACTORS)}")
    factors = {}
    for ours, theirs in ROPE_FACTORS[kind].items():
        if theirs not in scaling:
            config.refuse("rope_type", kind, f"it lacks {theirs}")
        factors[ours] = scaling[theirs]
    known = {"rope_theta", "rope_type", "type", *ROPE_FACTORS[kind].values()}
    for key in sorted(scaling.keys() - known):
        # A config with rope_type=default may also give the original length.
        if key != ORIGINAL_LENGTH and scaling[key] not in (None, 1.0):
            config.refuse(
                f"rope parameter {key}", scaling[key], f"rope_type={kind} has no such parameter"
            )
    return dict(rope_theta=theta, rope_scaling=kind, **factors)


def read_more(config, shapes, head):
    del head
    width, heads = config.size("hidden_size"), config.size("num_attention_heads")
    tied = config.get("tie_word_embeddings", False)
    return dict(
        width=width,
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_size=config.get("head_dim", width // heads),
        tie_output=tied,
        encoder_layers=0,
        pooling="last",
        **read_rope(config),
    )


def write_more(model, head, ids):
    del head, ids
    if model.dropout_embedding or model.dropout_residual or model.dropout_feed_forward:
        raise MisfitError("has only model.dropout_attention; set the other kinds of dropout to 0")
    if model.rope_scaling not in ROPE_FACTORS:
        known = ", ".join(ROPE_FACTORS)
        raise MisfitError(f"model.rope_scaling={model.rope_scaling} is not one of: {known}")
    scaling = None
    if model.rope_scaling != "default":
        factors = ROPE_FACTORS[model.rope_scaling]
        scaling = {theirs: getattr(model, ours) for ours, theirs in factors.items()}
        scaling |= {"rope_type": model.rope_scaling}
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_size,
        tie_word_embeddings=model.tie_output,
        rope_theta=model.rope_theta,
        rope_scaling=scaling,
    )


LLAMA = Architecture(
    model_type="llama",
    heads={"LlamaForCausalLM": Head("causal_lm")},
    style=dict(
        family="decoder", input="tokens", position="rope", token_types=0, embedding_scale=False,
        embedding_norm=False, output_scale=False, output_bias=False, norm="rmsnorm",
        norm_placement="pre", activation="swiglu", bias=False, attention_scale=True,
    ),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        decoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("intermediate_size", REQUIRED),
        max_length=("max_position_embeddings", 2048),
        norm_epsilon=("rms_norm_eps", 1e-6),
        init_std=("initializer_range", 0.02),
        dropout_attention=("attention_dropout", 0.0),
    ),
    required_values=dict(hidden_act="silu", attention_bias=False, mlp_bias=False),
    # pretraining_tp computes the same matmuls in slices. The other keys only inform; they come from
    # nanotron (SmolLM) and from the first converted files.
    harmless=frozenset(("pretraining_tp", "is_llama_config", "max_sequence_length", "is_decoder")),
    neutral=dict(rope_interleaved=(False,), is_causal=(True,)),
    table=table,
    read_more=read_more,
    write_more=write_more,
    derived=(r"rotary_emb\.inv_freq$",),
    copies=(("lm_head.weight", "model.embed_tokens.weight"),),
    generates=True,
)  # fmt: skip
