"""ALBERT: BERT whose layers share parameters, with embeddings narrower than its layers.

Its head for the order of two sentences is left out.
"""

from pretrained import bert
from pretrained.architecture import Architecture, Head, MisfitError
from pretrained.layouts import below


def table(model, head, ids):
    """Our modules, each with the place of its tensors in ALBERT's files; layers are groups."""
    del model, head, ids
    embeddings = bert.encoder("albert")
    return {
        **{ours: at for ours, at in embeddings.items() if "/blocks/" not in ours},
        "backbone/encoder/embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
        **below(
            "backbone/encoder/blocks",
            "albert.encoder.albert_layer_groups.{layer}.albert_layers.0",
            {
                "self_attention/query": "attention.query",
                "self_attention/key": "attention.key",
                "self_attention/value": "attention.value",
                "self_attention/out": "attention.dense",
                "self_attention_norm": "attention.LayerNorm",
                "feed_forward/in": "ffn",
                "feed_forward/out": "ffn_output",
                "feed_forward_norm": "full_layer_layer_norm",
            },
        ),
        "pool/dense": "albert.pooler",
        "transform": "predictions.dense",
        "transform_norm": "predictions.LayerNorm",
        "vocabulary": "predictions",
        "classes": "classifier",
        "span": "qa_outputs",
    }


def read_more(config, shapes, head):
    """Our `model` keys of ALBERT, beyond those that are only renamed."""
    layers, groups = config.size("num_hidden_layers"), config.get("num_hidden_groups", 1)
    if groups < 1 or layers % groups:
        config.refuse("num_hidden_groups", groups, f"it must divide num_hidden_layers={layers}")
    size = config.get("embedding_size", 128)
    if size < 1:
        config.refuse("embedding_size", size, "it must be at least 1")
    has_pooler = not head.reads_tokens and (
        head.objective != "embed" or any("pooler.weight" in name for name in shapes)
    )
    return bert.read_more(config, shapes, head, "gelu_new") | dict(
        layer_groups=groups, embedding_size=size, pooler=has_pooler
    )


def write_more(model, head, ids):
    """ALBERT's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    if not model.layer_groups:
        raise MisfitError("needs model.layer_groups=1, or another number of groups")
    if not model.embedding_size:
        raise MisfitError("needs model.embedding_size, such as 128")
    return bert.write_sizes(model, head) | dict(
        num_hidden_groups=model.layer_groups, embedding_size=model.embedding_size
    )


DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

ALBERT = Architecture(
    model_type="albert",
    heads={
        "AlbertModel": Head("embed"),
        "AlbertForMaskedLM": Head("masked_lm"),
        "AlbertForPreTraining": Head("masked_lm"),
        "AlbertForSequenceClassification": Head("classify_text"),
        "AlbertForTokenClassification": Head("classify_tokens"),
        "AlbertForQuestionAnswering": Head("answer_span"),
    },
    style=bert.STYLE,
    keys={
        ours: (theirs, DROPOUT.get(theirs, default))
        for ours, (theirs, default) in bert.KEYS.items()
    },
    required_values=dict(inner_group_num=1, tie_word_embeddings=True),
    # Of training; and keys of Google's first files, which transformers does not read.
    harmless=frozenset(
        (
            "classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type",
            "num_memory_blocks", "layers_to_keep",
        )
    ),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset(("embedding_size", "layer_groups")),
    base="albert.",
    other_heads=("sop_classifier.classifier", "albert.pooler"),
    renames=bert.OLD_NORMS,
    derived=(r"embeddings\.position_ids$",),
    copies=(
        ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
        ("predictions.decoder.bias", "predictions.bias"),
    ),
)  # fmt: skip
