"""MPNet: BERT without token types, whose scores also have T5's bias of relative positions."""

from pretrained import bert
from pretrained.architecture import (
    Architecture,
    Head,
    MisfitError,
    require_plain_heads,
    their_activation,
)
from pretrained.layouts import At, below

PADDING = 1  # constant in transformers: positions start after it


def table(model, head, ids):
    """Our modules, each with the place of its tensors in MPNet's files."""
    del model, ids
    pooler = "mpnet.pooler.dense" if head.objective == "embed" else "classifier.dense"
    return {
        "backbone/token_embedding": "mpnet.embeddings.word_embeddings",
        "backbone/encoder/position_embedding": At(
            "mpnet.embeddings.position_embeddings", rows_before=PADDING + 1
        ),
        "backbone/encoder/embedding_norm": "mpnet.embeddings.LayerNorm",
        "backbone/encoder/relative_bias": "mpnet.encoder.relative_attention_bias",
        **below(
            "backbone/encoder/blocks",
            "mpnet.encoder.layer.{layer}",
            {
                "self_attention/query": "attention.attn.q",
                "self_attention/key": "attention.attn.k",
                "self_attention/value": "attention.attn.v",
                "self_attention/out": "attention.attn.o",
                "self_attention_norm": "attention.LayerNorm",
                "feed_forward/in": "intermediate.dense",
                "feed_forward/out": "output.dense",
                "feed_forward_norm": "output.LayerNorm",
            },
        ),
        "pool/dense": pooler,
        "transform": "lm_head.dense",
        "transform_norm": "lm_head.layer_norm",
        "vocabulary": "lm_head",
        "classes": "classifier" if head.objective == "classify_tokens" else "classifier.out_proj",
        "span": "qa_outputs",
    }


def read_more(config, shapes, head):
    """Our `model` keys of MPNet, beyond those that are only renamed."""
    if head.objective == "masked_lm":
        config.require("hidden_act", "gelu")  # the output layer always uses gelu
    config.require("pad_token_id", PADDING)
    ours = bert.read_more(config, shapes, head)
    length = config.get("max_position_embeddings", 512) - PADDING - 1
    return ours | dict(max_length=length, relative_bias=True, relative_max_distance=128)


def write_more(model, head, ids):
    """MPNet's config keys, beyond those that are only renamed; raises MisfitError."""
    require_plain_heads(model)
    if head.objective == "masked_lm" and model.activation != "gelu":
        raise MisfitError(f"model.activation={model.activation}, but the output layer has gelu")
    if ids.pad not in (None, PADDING):
        raise MisfitError(f"positions start after the padding id {PADDING}, and it is {ids.pad}")
    if not model.relative_bias or model.relative_max_distance != 128:
        raise MisfitError("needs model.relative_bias=True with model.relative_max_distance=128")
    has_pooler = model.pooler and model.pooler_activation == "tanh"
    if head.reads_texts and not has_pooler:
        raise MisfitError("model.pooler=True with model.pooler_activation=tanh is needed")
    if head.reads_tokens and model.pooler:
        raise MisfitError("model.pooler=True, but heads for tokens have no pooler here")
    return dict(
        hidden_size=model.width,
        num_attention_heads=model.heads,
        hidden_act=their_activation(model.activation),
        max_position_embeddings=model.max_length + PADDING + 1,
    )


KEYS = {ours: theirs for ours, theirs in bert.KEYS.items() if ours != "token_types"}

MPNET = Architecture(
    model_type="mpnet",
    heads={
        "MPNetModel": Head("embed"),
        "MPNetForMaskedLM": Head("masked_lm"),
        "MPNetForSequenceClassification": Head("classify_text"),
        "MPNetForTokenClassification": Head("classify_tokens"),
        "MPNetForQuestionAnswering": Head("answer_span"),
    },
    style=dict(bert.STYLE, token_types=0, relative_buckets=32),
    keys=KEYS,
    # transformers computes with 32 buckets, whatever the config says.
    required_values=dict(relative_attention_num_buckets=32, tie_word_embeddings=True),
    table=table,
    read_more=read_more,
    write_more=write_more,
    sets=frozenset(("relative_bias",)),
    base="mpnet.",
    other_heads=("mpnet.pooler.dense",),
    derived=(r"embeddings\.position_ids$",),
    copies=(
        ("lm_head.decoder.weight", "mpnet.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
)
