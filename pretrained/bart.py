"""BART and Marian: post-norm encoder-decoders. Marian has sinusoids and scaled embeddings; BART
has learned positions and a norm on the embeddings. mBART and Pegasus are their pre-norm forms.
M2M-100 and NLLB are like Pegasus, with fairseq's sinusoids.
"""

import dataclasses

import numpy as np

from pretrained.architecture import (
    ACTIVATIONS,
    REQUIRED,
    Architecture,
    Head,
    MisfitError,
    heads_of,
    require_plain_heads,
    their_activation,
)
from pretrained.layouts import At, below

STYLE = dict(
    family="encoder_decoder", input="tokens", token_types=0, share_embeddings=True,
    tie_output=True, output_scale=False, output_bias=True, norm="layernorm",
    norm_placement="post", norm_epsilon=1e-5, bias=True, attention_scale=True,
)  # fmt: skip
KEYS = dict(
    vocab_size=("vocab_size", REQUIRED),
    width=("d_model", REQUIRED),
    encoder_layers=("encoder_layers", REQUIRED),
    decoder_layers=("decoder_layers", REQUIRED),
    heads=("encoder_attention_heads", REQUIRED),
    feed_forward=("encoder_ffn_dim", REQUIRED),
    max_length=("max_position_embeddings", 1024),
    embedding_scale=("scale_embedding", False),
    init_std=("init_std", 0.02),
    dropout_embedding=("dropout", 0.1),
    dropout_residual=("dropout", 0.1),
    dropout_attention=("attention_dropout", 0.0),
    dropout_feed_forward=("activation_dropout", 0.0),
)
REQUIRED_VALUES = dict(
    tie_word_embeddings=True,
    # Early files have these switches; transformers now has separate models for them.
    normalize_before=False,
    add_final_layer_norm=False,
)
ALIASES = dict(num_attention_heads="encoder_attention_heads", hidden_size="d_model")
# transformers 4 wrote num_hidden_layers without reading it. is_decoder changes neither stack.
HARMLESS = frozenset(
    (
        "num_hidden_layers", "is_decoder", "encoder_layerdrop", "decoder_layerdrop",
        "classif_dropout", "replacing_rate", "student_encoder_layers", "student_decoder_layers",
        "kobart_version",
    )
)  # fmt: skip
NEUTRAL = dict(add_bias_logits=(False,), do_blenderbot_90_layernorm=(False,))
BART_OFFSET = 2  # unused rows at the start of the position table


def stack(name: str) -> dict[str, str | At]:
    """The table of the encoder or the decoder; `name` says which."""
    kinds = {"self_attention": "self_attn"}
    if name == "decoder":
        kinds["cross_attention"] = "encoder_attn"
    modules = {
        "feed_forward/in": "fc1",
        "feed_forward/out": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
    for ours, theirs in kinds.items():
        names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
        modules |= below(ours, theirs, names)
        modules[f"{ours}_norm"] = f"{theirs}_layer_norm"
    return {
        **below(f"backbone/{name}/blocks", f"model.{name}.layers.{{layer}}", modules),
        f"backbone/{name}/position_embedding": At(
            f"model.{name}.embed_positions", rows_before=BART_OFFSET
        ),
        f"backbone/{name}/embedding_norm": f"model.{name}.layernorm_embedding",
        f"backbone/{name}/final_norm": f"model.{name}.layer_norm",
    }


def table(model, head, ids):
    """Our modules, each with the place of its tensors in BART's files."""
    del model, head, ids
    return {
        "backbone/token_embedding": "model.shared",
        **stack("encoder"),
        **stack("decoder"),
        "vocabulary": At("final_logits_bias", is_tensor=True, leading_ones=1),
    }


# transformers' defaults for a config without the decoder's sizes.
DECODER_DEFAULTS = {"attention_heads": 16, "ffn_dim": 4096}


def read_more(config, shapes, head, activation="gelu"):
    """Our `model` keys of BART, beyond those that are only renamed.

    `activation` is the one of a config that names none.
    """
    del shapes, head
    sizes = heads_of(config, "d_model", "encoder_attention_heads")
    encoder = {"attention_heads": sizes["heads"], "ffn_dim": config.need("encoder_ffn_dim")}
    for name, size in encoder.items():
        decoder = config.get(f"decoder_{name}", DECODER_DEFAULTS[name])
        if decoder != size:
            config.refuse(f"decoder_{name}", decoder, f"only {size}, the encoder's value, is")
    found = config.translate("activation_function", ACTIVATIONS, activation)
    return dict(**sizes, activation=found)


def read_more_marian(config, shapes, head):
    """Our `model` keys of Marian, which has one vocabulary here."""
    config.require("decoder_vocab_size", config.need("vocab_size"))
    return read_more(config, shapes, head)


def write_more(model, head, ids):
    """BART's config keys, beyond those that are only renamed; raises MisfitError."""
    del head, ids
    require_plain_heads(model)
    return dict(
        decoder_attention_heads=model.heads,
        decoder_ffn_dim=model.feed_forward,
        activation_function=their_activation(model.activation),
        num_hidden_layers=model.encoder_layers,
        is_encoder_decoder=True,
    )


def write_more_marian(model, head, ids):
    """Marian's config keys: BART's and those of its vocabularies."""
    vocabularies = dict(decoder_vocab_size=model.vocab_size, share_encoder_decoder_embeddings=True)
    return write_more(model, head, ids) | vocabularies


COPIES = (
    ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ("lm_head.weight", "model.shared.weight"),
)

BART = Architecture(
    model_type="bart",
    # A base model is the same model: its output layer is the embeddings with a bias of zeros.
    heads={"BartForConditionalGeneration": Head("seq2seq"), "BartModel": Head("seq2seq")},
    style=STYLE | dict(position="learned", embedding_norm=True),
    keys=KEYS,
    required_values=REQUIRED_VALUES
    | dict(static_position_embeddings=False, normalize_embedding=True),
    aliases=ALIASES,
    harmless=HARMLESS,
    neutral=NEUTRAL | dict(extra_pos_embeddings=(BART_OFFSET,)),
    table=table,
    read_more=read_more,
    write_more=write_more,
    base="model.",
    copies=COPIES,
    zero_if_missing=("final_logits_bias",),
    generates=True,
)


def sinusoids(model):
    """Marian's and Pegasus' tables of positions, in float64 as in transformers."""
    frequencies = 10_000.0 ** -(np.arange(0, model.width, 2) / model.width)
    angles = np.arange(model.max_length)[:, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {f"model.{name}.embed_positions.weight": waves for name in ("encoder", "decoder")}


MARIAN = Architecture(
    model_type="marian",
    heads={"MarianMTModel": Head("seq2seq")},
    style=STYLE | dict(position="sinusoidal", sinusoidal_scale=1.0, embedding_norm=False),
    keys=KEYS,
    required_values=REQUIRED_VALUES
    | dict(
        static_position_embeddings=True,
        normalize_embedding=False,
        share_encoder_decoder_embeddings=True,
    ),
    aliases=ALIASES,
    harmless=HARMLESS | {"extra_pos_embeddings"},  # sinusoidal positions always begin at 0
    neutral=NEUTRAL,
    table=table,
    read_more=read_more_marian,
    write_more=write_more_marian,
    derived=(r"^model\.(encoder|decoder)\.embed_positions\.weight$",),
    derived_values=sinusoids,
    copies=COPIES,
    zero_if_missing=("final_logits_bias",),
    generates=True,
)


PRE_NORM = dict(normalize_before=True, add_final_layer_norm=True)
MBART = dataclasses.replace(
    BART,
    model_type="mbart",
    heads={"MBartForConditionalGeneration": Head("seq2seq"), "MBartModel": Head("seq2seq")},
    style=BART.style | dict(norm_placement="pre"),
    required_values=BART.required_values | PRE_NORM,
)
PEGASUS = dataclasses.replace(
    MARIAN,
    model_type="pegasus",
    heads={"PegasusForConditionalGeneration": Head("seq2seq"), "PegasusModel": Head("seq2seq")},
    style=MARIAN.style | dict(norm_placement="pre"),
    required_values=REQUIRED_VALUES
    | PRE_NORM
    | dict(static_position_embeddings=True, normalize_embedding=False),
    read_more=read_more,
    write_more=write_more,
    computed=sinusoids,
    base="model.",
)


def read_more_m2m(config, shapes, head):
    """Our `model` keys of M2M-100. As in fairseq, positions are numbered from pad + 1 on."""
    offset = config.get("pad_token_id", 1) + 1
    return read_more(config, shapes, head, "relu") | dict(sinusoidal_offset=offset)


def write_more_m2m(model, head, ids):
    """M2M-100's config keys; raises MisfitError."""
    if model.sinusoidal_offset != (1 if ids.pad is None else ids.pad) + 1:
        raise MisfitError(
            f"model.sinusoidal_offset={model.sinusoidal_offset} is not 1 + the id of padding"
        )
    return write_more(model, head, ids)


M2M_100 = dataclasses.replace(
    PEGASUS,
    model_type="m2m_100",
    heads={"M2M100ForConditionalGeneration": Head("seq2seq"), "M2M100Model": Head("seq2seq")},
    style=PEGASUS.style | dict(sinusoidal_variant="tensor2tensor", output_bias=False),
    keys=KEYS
    | dict(embedding_scale=("scale_embedding", True), dropout_attention=("attention_dropout", 0.1)),
    required_values=dict(tie_word_embeddings=True),
    read_more=read_more_m2m,
    write_more=write_more_m2m,
    sets=frozenset(("sinusoidal_offset",)),
    harmless=HARMLESS,
    derived=(r"^model\.(encoder|decoder)\.embed_positions\.weights$",),
    derived_values=lambda model: {},
    computed=lambda model: {},
    zero_if_missing=(),
)
