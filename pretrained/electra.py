"""ELECTRA: BERT with embeddings narrower than its layers, and with other heads.

Of a discriminator, the base model is read. Its own head, which finds replaced tokens, is left out.
"""

from pretrained import bert
from pretrained.architecture import (
    Architecture,
    Head,
    MisfitError,
    require_plain_heads,
    their_activation,
)

HEADS = {
    "ElectraModel": Head("embed"),
    "ElectraForMaskedLM": Head("masked_lm"),
    "ElectraForSequenceClassification": Head("classify_text"),
    "ElectraForTokenClassification": Head("classify_tokens"),
    "ElectraForQuestionAnswering": Head("answer_span"),
    "ElectraForPreTraining": Head("embed"),
}


def table(model, head, ids):
    """Our modules, each with the place of its tensors in ELECTRA's files."""
    del model, ids
    return bert.encoder("electra") | {
        "backbone/encoder/embedding_projection": "electra.embeddings_project",
        "transform": "generator_predictions.dense",
        "transform_norm": "generator_predictions.LayerNorm",
        "vocabulary": "generator_lm_head",
        "pool/dense": "classifier.dense",
        "classes": "classifier" if head.objective == "classify_tokens" else "classifier.out_proj",
        "span": "qa_outputs",
    }


def read_more(config, shapes, head):
    """Our `model` keys of ELECTRA, beyond those that are only renamed."""
    ours = bert.read_more(config, shapes, head)
    if head.objective == "masked_lm":
        config.require("hidden_act", "gelu")  # the output layer always uses gelu
    size = config.get("embedding_size", 128)
    if size < 1:
        config.refuse("embedding_size", size, "it must be at least 1")
    narrow = 0 if size == ours["width"] else size
    return ours | dict(embedding_size=narrow, pooler=head.reads_texts, pooler_activation="gelu")


def write_more(model, head, ids):
    """ELECTRA's config keys, beyond those that are only renamed; raises MisfitError."""
    del ids
    require_plain_heads(model)
    if head.objective == "masked_lm" and model.activation != "gelu":
        raise MisfitError(f"model.activation={model.activation}, but the output layer has gelu")
    if model.pooler != head.reads_texts or (model.pooler and model.pooler_activation != "gelu"):
        raise MisfitError("has a pooler in a classifier of texts alone, with gelu")
    if not model.token_types:
        raise MisfitError("model.token_types=0, but this architecture has token types")
    return dict(
        embedding_size=model.embedding_size or model.width,
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_act=their_activation(model.activation),
        max_position_embeddings=model.max_length,
    )


ELECTRA = Architecture(
    model_type="electra",
    heads=HEADS,
    style=bert.STYLE,
    keys=bert.KEYS,
    required_values=bert.REQUIRED_VALUES,
    # The summary_* keys belong to another head.
    harmless=frozenset(
        ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
    ),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset(("embedding_size",)),
    base="electra.",
    other_heads=("discriminator_predictions.dense", "discriminator_predictions.dense_prediction"),
    renames=bert.OLD_NORMS,
    derived=(r"embeddings\.position_ids$",),
    copies=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
)
