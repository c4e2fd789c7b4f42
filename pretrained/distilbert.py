"""DistilBERT: BERT without token types and pooler, with a ReLU layer before the classifier."""

from pretrained import bert
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
from pretrained.layouts import below


def table(model, head, ids):
    """Our modules, each with the place of its tensors in DistilBERT's files."""
    del model, head, ids
    return {
        "backbone/token_embedding": "distilbert.embeddings.word_embeddings",
        "backbone/encoder/position_embedding": "distilbert.embeddings.position_embeddings",
        "backbone/encoder/embedding_norm": "distilbert.embeddings.LayerNorm",
        **below(
            "backbone/encoder/blocks",
            "distilbert.transformer.layer.{layer}",
            {
                "self_attention/query": "attention.q_lin",
                "self_attention/key": "attention.k_lin",
                "self_attention/value": "attention.v_lin",
                "self_attention/out": "attention.out_lin",
                "self_attention_norm": "sa_layer_norm",
                "feed_forward/in": "ffn.lin1",
                "feed_forward/out": "ffn.lin2",
                "feed_forward_norm": "output_layer_norm",
            },
        ),
        "transform": "vocab_transform",
        "transform_norm": "vocab_layer_norm",
        "vocabulary": "vocab_projector",
        "pool/dense": "pre_classifier",
        "classes": "classifier",
        "span": "qa_outputs",
    }


def read_more(config, shapes, head):
    """Our `model` keys of DistilBERT, beyond those that are only renamed."""
    del shapes
    return dict(
        **heads_of(config, "dim", "n_heads"),
        activation=config.translate("activation", ACTIVATIONS, "gelu"),
        pooler=head.objective != "embed" and not head.reads_tokens,
        decoder_layers=0,
        pooler_activation="relu",
    )


def write_more(model, head, ids):
    """DistilBERT's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    if head.reads_texts and not (model.pooler and model.pooler_activation == "relu"):
        raise MisfitError("model.pooler=True with model.pooler_activation=relu is needed")
    if (head.objective == "embed" or head.reads_tokens) and model.pooler:
        raise MisfitError("model.pooler=True, but only DistilBERT's classifier has a pooler")
    return dict(dim=model.width, n_heads=model.heads, activation=their_activation(model.activation))


DISTILBERT = Architecture(
    model_type="distilbert",
    heads={
        "DistilBertModel": Head("embed"),
        "DistilBertForMaskedLM": Head("masked_lm"),
        "DistilBertForSequenceClassification": Head("classify_text"),
        "DistilBertForTokenClassification": Head("classify_tokens"),
        "DistilBertForQuestionAnswering": Head("answer_span"),
    },
    # The epsilon of the norm is a constant, not a config key.
    style=bert.STYLE | dict(token_types=0, norm_epsilon=1e-12),
    keys=dict(
        vocab_size=("vocab_size", REQUIRED),
        encoder_layers=("n_layers", REQUIRED),
        feed_forward=("hidden_dim", REQUIRED),
        max_length=("max_position_embeddings", 512),
        init_std=("initializer_range", 0.02),
        dropout_embedding=("dropout", 0.1),
        dropout_residual=("dropout", 0.1),
        dropout_attention=("attention_dropout", 0.1),
    ),
    required_values=dict(tie_word_embeddings=True),
    aliases=dict(hidden_size="dim", num_attention_heads="n_heads", num_hidden_layers="n_layers"),
    # Sinusoidal positions are stored as learned ones are.
    harmless=frozenset(
        ("sinusoidal_pos_embds", "seq_classif_dropout", "qa_dropout", "tie_weights_")
    ),
    table=table,
    read_more=read_more,
    write_more=write_more,
    base="distilbert.",
    derived=(r"embeddings\.position_ids$",),
    copies=(("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
)
