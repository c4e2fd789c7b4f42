"""T5 v1.0 (ReLU, tied and scaled output) and v1.1 (gated, untied), such as Flan-T5 and mT5."""

import dataclasses

from pretrained.architecture import ACTIVATIONS, REQUIRED, Architecture, Head, MisfitError
from pretrained.layouts import below

GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
FEED_FORWARDS = {
    **ACTIVATIONS,
    **{f"gated-{theirs}": GATED[ours] for theirs, ours in ACTIVATIONS.items()},
    "gated-gelu": "geglu_tanh",  # an exception in transformers, on which v1.1 relies
}


def stack(name: str) -> dict[str, str]:
    """The table of the encoder or the decoder, without feed-forward layers.

    In umT5 every layer has a bias of relative positions, in T5 the first one.
    """

    def attention(ours, theirs):
        return below(ours, theirs, {"query": "q", "key": "k", "value": "v", "out": "o"})

    last = 2 if name == "decoder" else 1  # the number of the last sublayer
    modules = {
        "self_attention_norm": "layer.0.layer_norm",
        **attention("self_attention", "layer.0.SelfAttention"),
        "feed_forward_norm": f"layer.{last}.layer_norm",
    }
    if name == "decoder":
        modules["cross_attention_norm"] = "layer.1.layer_norm"
        modules |= attention("cross_attention", "layer.1.EncDecAttention")
    bias = "layer.0.SelfAttention.relative_attention_bias"
    modules["self_attention/relative_bias"] = bias
    return {
        f"backbone/{name}/relative_bias": f"{name}.block.0.{bias}",
        f"backbone/{name}/final_norm": f"{name}.final_layer_norm",
        **below(f"backbone/{name}/blocks", f"{name}.block.{{layer}}", modules),
    }


def feed_forward(name: str, *, gated: bool) -> dict[str, str]:
    """The table of the feed-forward layers of the encoder or the decoder."""
    names = {"gate": "wi_0", "in": "wi_1", "out": "wo"} if gated else {"in": "wi", "out": "wo"}
    number = 2 if name == "decoder" else 1
    return below(
        f"backbone/{name}/blocks/feed_forward",
        f"{name}.block.{{layer}}.layer.{number}.DenseReluDense",
        names,
    )


def table(model, head, ids):
    """Our modules, each with the place of its tensors in T5's files."""
    del head, ids
    gated = model.activation in GATED.values()
    return {
        "backbone/token_embedding": "shared",
        **stack("encoder"),
        **feed_forward("encoder", gated=gated),
        **stack("decoder"),
        **feed_forward("decoder", gated=gated),
        "vocabulary/output": "lm_head",
    }


def read_more(config, shapes, head):
    """Our `model` keys of T5, beyond those that are only renamed."""
    del head
    says_tied = config.get("tie_word_embeddings", True)
    # transformers 4 scales the output if weights are tied; 5 always ties, and has a key to scale.
    scaled = config.get("scale_decoder_outputs", says_tied)
    tied = "lm_head.weight" not in shapes or bool(says_tied and scaled)
    default = "gated-gelu" if config.get("model_type") in ("mt5", "umt5") else "relu"
    activation = config.translate("feed_forward_proj", FEED_FORWARDS, default)
    # transformers also writes and reads these keys, which follow from feed_forward_proj.
    *gate, name = config.get("feed_forward_proj", default).split("-")
    config.require("is_gated_act", bool(gate))
    config.require("dense_act_fn", "gelu_new" if gate and name == "gelu" else name)
    layers = config.size("num_layers")
    heads = config.size("num_heads")
    return dict(
        heads=heads,
        kv_heads=heads,
        encoder_layers=layers,
        decoder_layers=config.get("num_decoder_layers", layers),
        activation=activation,
        tie_output=tied,
        output_scale=bool(tied and scaled),
        init_std=0.0,
        # T5 has no maximum length; this is only the default length for training.
        max_length=config.get("n_positions", 512),
    )


def read_more_mt5(config, shapes, head):
    """Our `model` keys of mT5 and umT5, which never scale the output."""
    more = read_more(config, shapes, head)
    return more | dict(tie_output="lm_head.weight" not in shapes, output_scale=False)


def write_more(model, head, ids):
    """T5's config keys, beyond those that are only renamed; raises MisfitError."""
    del head, ids
    if model.kv_heads != model.heads:
        raise MisfitError("needs model.kv_heads=0: each head has its own keys and values")
    names = {ours: theirs for theirs, ours in reversed(FEED_FORWARDS.items())}
    if model.activation not in names:
        raise MisfitError(f"model.activation={model.activation} is not one of: {', '.join(names)}")
    scales = {} if model.output_scale == model.tie_output else {"scale_decoder_outputs": False}
    return dict(
        num_heads=model.heads,
        num_layers=model.encoder_layers,
        num_decoder_layers=model.decoder_layers,
        feed_forward_proj=names[model.activation],
        tie_word_embeddings=model.tie_output,
        n_positions=model.max_length,
        is_encoder_decoder=True,
        **scales,
    )


T5 = Architecture(
    model_type="t5",
    heads={
        "T5ForConditionalGeneration": Head("seq2seq"),
        "T5WithLMHeadModel": Head("seq2seq"),  # in the first files
    },
    style=dict(
        family="encoder_decoder", input="tokens", position="t5_bias", token_types=0,
        embedding_scale=False, embedding_norm=False, share_embeddings=True, output_bias=False,
        norm="rmsnorm", norm_placement="pre", bias=False, attention_scale=False,
    ),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        width=("d_model", REQUIRED),
        head_size=("d_kv", REQUIRED),
        feed_forward=("d_ff", REQUIRED),
        relative_buckets=("relative_attention_num_buckets", 32),
        relative_max_distance=("relative_attention_max_distance", 128),
        norm_epsilon=("layer_norm_epsilon", 1e-6),
        dropout_embedding=("dropout_rate", 0.1),
        dropout_attention=("dropout_rate", 0.1),
        dropout_residual=("dropout_rate", 0.1),
        dropout_feed_forward=("dropout_rate", 0.1),
    ),
    required_values={},
    aliases=dict(
        hidden_size="d_model", num_attention_heads="num_heads", num_hidden_layers="num_layers",
        head_dim="d_kv",
    ),
    # is_decoder changes neither stack.
    harmless=frozenset(("initializer_factor", "is_decoder")),
    table=table,
    read_more=read_more,
    write_more=write_more,
    # One published T5 file has a bias here that no model reads.
    derived=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
    copies=(
        ("encoder.embed_tokens.weight", "shared.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
        ("lm_head.weight", "shared.weight"),
    ),
    generates=True,
)  # fmt: skip

# mT5 is read as T5, and an export writes it as T5.
MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    heads={"MT5ForConditionalGeneration": Head("seq2seq")},
    read_more=read_more_mt5,
)

# Logits as transformers 4 has them: scaled only if weights are tied. transformers 5 scales all.
UMT5 = dataclasses.replace(
    T5,
    model_type="umt5",
    heads={"UMT5ForConditionalGeneration": Head("seq2seq")},
    style=T5.style | dict(own_relative_bias=True),
)


def read_more_encoder(config, shapes, head):
    """Our `model` keys of T5's encoder alone."""
    more = read_more(config, shapes, head)
    for key in ("tie_output", "output_scale"):  # there is no output layer
        del more[key]
    return more | dict(decoder_layers=0, pooler=False)


def write_more_encoder(model, head, ids):
    """The config keys of T5's encoder alone; raises MisfitError."""
    more = write_more(model, head, ids)
    if model.pooler:
        raise MisfitError("model.pooler=True, but T5's encoder has no pooler")
    for key in ("num_decoder_layers", "tie_word_embeddings", "scale_decoder_outputs"):
        more.pop(key, None)
    return more | dict(is_encoder_decoder=False)


# T5 without its decoder: another class of the same model_type.
T5_ENCODER = dataclasses.replace(
    T5,
    heads={"T5EncoderModel": Head("embed")},
    style={
        **{k: v for k, v in T5.style.items() if k not in ("share_embeddings", "output_bias")},
        "family": "encoder",
    },
    read_more=read_more_encoder,
    write_more=write_more_encoder,
    generates=False,
    harmless=frozenset(("initializer_factor",)),  # is_decoder hides future tokens from this class
)
