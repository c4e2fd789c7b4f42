"""BERT and MiniLM: a post-norm encoder with token types and a tanh pooler."""

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
    family="encoder", input="tokens", position="learned", embedding_scale=False,
    embedding_norm=True, tie_output=True, output_scale=False, output_bias=True, norm="layernorm",
    norm_placement="post", bias=True, attention_scale=True, pooling="first",
)  # fmt: skip
KEYS = dict(
    vocab_size=("vocab_size", REQUIRED),
    encoder_layers=("num_hidden_layers", REQUIRED),
    feed_forward=("intermediate_size", REQUIRED),
    token_types=("type_vocab_size", 2),
    norm_epsilon=("layer_norm_eps", 1e-12),
    init_std=("initializer_range", 0.02),
    dropout_embedding=("hidden_dropout_prob", 0.1),
    dropout_residual=("hidden_dropout_prob", 0.1),
    dropout_attention=("attention_probs_dropout_prob", 0.1),
)
REQUIRED_VALUES = dict(
    position_embedding_type="absolute",
    is_decoder=False,
    add_cross_attention=False,
    tie_word_embeddings=True,
)
# Keys of Google's first files; transformers does not read them.
HARMLESS = frozenset(
    (
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    )
)  # fmt: skip
# Names of LayerNorm's parameters in BERT's first files.
OLD_NORMS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))


def encoder(base: str, rows_before: int = 0) -> dict[str, str | At]:
    """The table of an encoder whose tensor names begin with `base`."""
    return {
        "backbone/token_embedding": f"{base}.embeddings.word_embeddings",
        "backbone/token_type_embedding": f"{base}.embeddings.token_type_embeddings",
        "backbone/encoder/position_embedding": At(
            f"{base}.embeddings.position_embeddings", rows_before=rows_before
        ),
        "backbone/encoder/embedding_norm": f"{base}.embeddings.LayerNorm",
        **below(
            "backbone/encoder/blocks",
            f"{base}.encoder.layer.{{layer}}",
            {
                "self_attention/query": "attention.self.query",
                "self_attention/key": "attention.self.key",
                "self_attention/value": "attention.self.value",
                "self_attention/out": "attention.output.dense",
                "self_attention_norm": "attention.output.LayerNorm",
                "feed_forward/in": "intermediate.dense",
                "feed_forward/out": "output.dense",
                "feed_forward_norm": "output.LayerNorm",
            },
        ),
        "pool/dense": f"{base}.pooler.dense",
    }


def table(model, head, ids):
    """Our modules, each with the place of its tensors in BERT's files."""
    del model, head, ids
    return encoder("bert") | {
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "vocabulary": "cls.predictions",
        "next_sentence": "cls.seq_relationship",
        "classes": "classifier",
        "span": "qa_outputs",
    }


def read_more(config, shapes, head, activation="gelu"):
    """Our `model` keys of BERT, beyond those that are only renamed.

    `activation` is the one of a config that names none.
    """
    # Files of token classifiers of old versions have a pooler that nothing reads.
    has_pooler = not head.reads_tokens and (
        head.objective != "embed" or any("pooler.dense" in name for name in shapes)
    )
    return dict(
        **heads_of(config, "hidden_size", "num_attention_heads"),
        activation=config.translate("hidden_act", ACTIVATIONS, activation),
        max_length=config.get("max_position_embeddings", 512),
        pooler=has_pooler,
        decoder_layers=0,
        pooler_activation="tanh",
    )


def write_sizes(model, head):
    """Their keys for the sizes, which RoBERTa has too."""
    require_plain_heads(model)
    has_pooler = model.pooler and model.pooler_activation == "tanh"
    if not has_pooler and (head.reads_texts or head.next_sentence):
        raise MisfitError("model.pooler=True with model.pooler_activation=tanh is needed")
    if head.reads_tokens and model.pooler:
        raise MisfitError("model.pooler=True, but heads for tokens have no pooler here")
    if not model.token_types:
        raise MisfitError("model.token_types=0, but this architecture has token types")
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_act=their_activation(model.activation),
        max_position_embeddings=model.max_length,
    )


def write_more(model, head, ids):
    """BERT's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    return write_sizes(model, head)


BERT = Architecture(
    model_type="bert",
    heads={
        "BertModel": Head("embed"),
        "BertForMaskedLM": Head("masked_lm"),
        "BertForPreTraining": Head("masked_lm", next_sentence=True),
        "BertForSequenceClassification": Head("classify_text"),
        "BertForTokenClassification": Head("classify_tokens"),
        "BertForQuestionAnswering": Head("answer_span"),
    },
    style=STYLE,
    keys=KEYS,
    required_values=REQUIRED_VALUES,
    harmless=HARMLESS,
    table=table,
    read_more=read_more,
    write_more=write_more,
    base="bert.",
    other_heads=("bert.pooler.dense",),
    renames=OLD_NORMS,
    derived=(r"embeddings\.position_ids$",),
    copies=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)
