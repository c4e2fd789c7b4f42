"""RoBERTa, XLM-R and CamemBERT: BERT with other heads, and positions that start after padding.

The three differ in their tokenizers alone, so an export writes all of them as RoBERTa.
"""

import dataclasses

from pretrained import bert
from pretrained.architecture import Architecture, Head, MisfitError

PADDING = 1  # the default of pad_token_id


def rows_before(ids) -> int:
    """The number of unused rows at the start of the position table: the padding id + 1."""
    return (PADDING if ids.pad is None else ids.pad) + 1


def table(model, head, ids):
    """Our modules, each with the place of its tensors in RoBERTa's files."""
    del model
    names = bert.encoder("roberta", rows_before(ids)) | {
        "transform": "lm_head.dense",
        "transform_norm": "lm_head.layer_norm",
        "vocabulary": "lm_head",
        "classes": "classifier" if head.objective == "classify_tokens" else "classifier.out_proj",
        "span": "qa_outputs",
    }
    if head.reads_texts:
        names["pool/dense"] = "classifier.dense"
    return names


def read_more(config, shapes, head):
    """Our `model` keys of RoBERTa, beyond those that are only renamed."""
    more = bert.read_more(config, shapes, head)
    if head.objective == "masked_lm":
        config.require("hidden_act", "gelu")  # the output layer always uses gelu
    padding, vocabulary = config.get("pad_token_id", PADDING), config.size("vocab_size")
    if not 0 <= padding < vocabulary:
        config.refuse(
            "pad_token_id",
            padding,
            f"positions start after it, so it must be an id; the vocabulary has {vocabulary} ids",
        )
    before = padding + 1
    return more | dict(max_length=config.size("max_position_embeddings") - before)


def write_more(model, head, ids):
    """RoBERTa's config keys, beyond those that are only renamed; raises MisfitError."""
    if model.token_types != 1:
        raise MisfitError(f"model.token_types={model.token_types}, but RoBERTa has 1")
    if head.objective == "masked_lm" and model.activation != "gelu":
        raise MisfitError(f"model.activation={model.activation}, but the output layer has gelu")
    positions = model.max_length + rows_before(ids)
    return bert.write_sizes(model, head) | dict(max_position_embeddings=positions)


ROBERTA = Architecture(
    model_type="roberta",
    heads={
        "RobertaModel": Head("embed"),
        "RobertaForMaskedLM": Head("masked_lm"),
        "RobertaForSequenceClassification": Head("classify_text"),
        "RobertaForTokenClassification": Head("classify_tokens"),
        "RobertaForQuestionAnswering": Head("answer_span"),
    },
    style=bert.STYLE,
    keys=bert.KEYS,
    required_values=bert.REQUIRED_VALUES,
    harmless=bert.HARMLESS,
    table=table,
    read_more=read_more,
    write_more=write_more,
    base="roberta.",
    other_heads=("classifier.dense", "roberta.pooler.dense"),
    renames=bert.OLD_NORMS,
    derived=(r"embeddings\.position_ids$",),
    copies=(
        ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
)


def _relative(model_type: str, prefix: str) -> Architecture:
    """RoBERTa by another name; `prefix` begins the names of its classes in transformers."""
    heads = {name.replace("Roberta", prefix): head for name, head in ROBERTA.heads.items()}
    return dataclasses.replace(ROBERTA, model_type=model_type, heads=heads)


XLM_ROBERTA = _relative("xlm-roberta", "XLMRoberta")
CAMEMBERT = _relative("camembert", "Camembert")
