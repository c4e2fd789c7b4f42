"""ModernBERT: a pre-norm encoder without biases, with gated layers and windows in most layers.

Layers with windows have their own RoPE base. The embeddings are normalised, so the first layer has
no norm before its attention.
"""

from pretrained.architecture import (
    REQUIRED,
    Architecture,
    Head,
    MisfitError,
    heads_of,
    require_plain_heads,
)
from pretrained.decoder_parts import (
    FULL,
    LAYER_TYPES,
    layer_types_of,
    read_layer_types,
    shortest_pattern,
)
from pretrained.layouts import At, below
from pretrained.rope_keys import OURS, two_ropes_part

GATED = dict(gelu="geglu", relu="reglu", silu="swiglu", gelu_pytorch_tanh="geglu_tanh")
POOLERS = dict(gelu="gelu", relu="relu", tanh="tanh")
POOLING = dict(cls="first", mean="mean")
ROPES = two_ropes_part(
    full=("global_rope_theta", 160_000.0), local=("local_rope_theta", 10_000.0), same_scaling=True
)


def table(model, head, ids):
    """Our modules, each with the place of its tensors in ModernBERT's files."""
    del model, ids
    names = {
        "backbone/token_embedding": "model.embeddings.tok_embeddings",
        "backbone/encoder/embedding_norm": "model.embeddings.norm",
        **below(
            "backbone/encoder/blocks",
            "model.layers.{layer}",
            {
                "self_attention_norm": At("attn_norm", from_layer=1),
                "self_attention/query": At("attn.Wqkv", part=(0, 3)),
                "self_attention/key": At("attn.Wqkv", part=(1, 3)),
                "self_attention/value": At("attn.Wqkv", part=(2, 3)),
                "self_attention/out": "attn.Wo",
                "feed_forward_norm": "mlp_norm",
                "feed_forward/gate": At("mlp.Wi", part=(0, 2)),
                "feed_forward/in": At("mlp.Wi", part=(1, 2)),
                "feed_forward/out": "mlp.Wo",
            },
        ),
        "backbone/encoder/final_norm": "model.final_norm",
        "vocabulary": "decoder",
        "classes": "classifier",
        "span": "classifier",
    }
    ours = ("transform", "transform_norm") if head.objective == "masked_lm" else POOLER
    return names | dict(zip(ours, ("head.dense", "head.norm"), strict=True))


POOLER = ("pool/dense", "pool/norm")


def _every_nth_full(config, layers: int) -> list[str]:
    period = config.get("global_attn_every_n_layers", 3)
    if period < 1:
        config.refuse("global_attn_every_n_layers", period, "it must be at least 1")
    return ["sliding_attention" if n % period else "full_attention" for n in range(layers)]


def read_more(config, shapes, head):
    """Our `model` keys of ModernBERT, beyond those that are only renamed."""
    del shapes
    ours = dict(
        **heads_of(config, "hidden_size", "num_attention_heads"),
        activation=config.translate("hidden_activation", GATED, "gelu"),
        pooler=head.objective not in ("embed", "masked_lm"),
        pooler_norm=head.objective not in ("embed", "masked_lm"),
        pooler_activation=config.translate("classifier_activation", POOLERS, "gelu"),
        pooling=config.translate("classifier_pooling", POOLING, "cls"),
        decoder_layers=0,
        **ROPES.read(config),
    )
    before, wanted = (config.get(f"{kind}_activation", "gelu") for kind in ("classifier", "hidden"))
    if head.objective == "masked_lm" and before != wanted:
        config.refuse("classifier_activation", before, f"only {wanted}, the hidden_activation, is")
    types = read_layer_types(config, _every_nth_full)
    if "sliding_attention" not in types:
        return ours | dict(attention=FULL, rope_local_theta=0.0)
    width = config.get("local_attention", 128)
    if width < 2:
        config.refuse("local_attention", width, "it must be at least 2")
    names = shortest_pattern([LAYER_TYPES[each] for each in types])
    # Theirs counts both sides of a token: 128 are 64 on each.
    return ours | dict(attention=",".join(names), attention_window=width // 2 + 1)


def write_more(model, head, ids):
    """ModernBERT's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    classifies = head.reads_texts or head.reads_tokens
    if classifies and not (model.pooler and model.pooler_norm):
        raise MisfitError("model.pooler=True with model.pooler_norm=True is needed")
    if head.objective in ("embed", "masked_lm") and model.pooler:
        raise MisfitError("model.pooler=True, but ModernBERT has a pooler for classes only")
    names = {ours: theirs for theirs, ours in GATED.items()}
    if model.activation not in names:
        raise MisfitError(f"model.activation={model.activation} is not one of: {', '.join(names)}")
    types = layer_types_of(model)
    local = {}
    if "sliding_attention" in types:
        if model.attention_window < 2:
            raise MisfitError("needs a model.attention_window of at least 2")
        local = dict(local_attention=2 * (model.attention_window - 1))
    pooler = names[model.activation] if head.objective == "masked_lm" else model.pooler_activation
    if pooler not in POOLERS:
        raise MisfitError(f"has no model.activation={model.activation} before masked tokens")
    if model.pooling not in POOLING.values():
        raise MisfitError(f"has no model.pooling={model.pooling}")
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_activation=names[model.activation],
        classifier_activation=pooler,
        classifier_pooling="mean" if model.pooling == "mean" else "cls",
        layer_types=types,
        **local,
        **ROPES.write(model),
    )


MODERNBERT = Architecture(
    model_type="modernbert",
    heads={
        "ModernBertModel": Head("embed"),
        "ModernBertForMaskedLM": Head("masked_lm"),
        "ModernBertForSequenceClassification": Head("classify_text"),
        "ModernBertForTokenClassification": Head("classify_tokens"),
        "ModernBertForQuestionAnswering": Head("answer_span"),
    },
    style=dict(
        family="encoder", input="tokens", position="rope", token_types=0, embedding_scale=False,
        embedding_norm=True, tie_output=True, output_scale=False, norm="layernorm",
        norm_placement="pre", first_norm=False, bias=False, attention_scale=True,
    ),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        encoder_layers=("num_hidden_layers", REQUIRED),
        feed_forward=("intermediate_size", REQUIRED),
        max_length=("max_position_embeddings", 8192),
        norm_epsilon=("norm_eps", 1e-5),
        norm_bias=("norm_bias", False),
        head_bias=("classifier_bias", False),
        output_bias=("decoder_bias", True),
        init_std=("initializer_range", 0.02),
        dropout_embedding=("embedding_dropout", 0.0),
        dropout_attention=("attention_dropout", 0.0),
        dropout_feed_forward=("mlp_dropout", 0.0),
    ),
    required_values=dict(attention_bias=False, mlp_bias=False, tie_word_embeddings=True),
    # How weights begin, and how their loss and their kernels are computed.
    harmless=frozenset(
        (
            "initializer_cutoff_factor", "deterministic_flash_attn", "sparse_prediction",
            "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad",
            "global_attn_every_n_layers",
        )
    ),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset((*OURS, "rope_local_theta", "attention", "pooler_norm", "first_norm")),
    base="model.",
    copies=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),),
    other_heads=("head.dense", "head.norm"),
)  # fmt: skip
