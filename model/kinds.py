"""The kinds of attention, what each is, and what it cannot do.

This table is the only place that says so: configs are refused by it, tests try everything that it
does not refuse, and docs/attention.md is written from both.
"""

from collections.abc import Iterator

KINDS = {
    "dot": "exact, all scores in memory: the reference",
    "flash": "exact, in blocks: memory grows with the length, not with its square",
    "local": "each query sees the keys less than `attention_window` positions away",
    "longformer": "a window with gaps, and global tokens that see and are seen from everywhere",
    "performer": "softmax's kernel by random features (FAVOR+), in linear time",
    "linear": "the kernel (elu(q) + 1)(elu(k) + 1), a recurrence in linear time",
    "chunked": "chunks of `attention_chunk` positions, seen with an overlap on their sides",
    "hierarchical": "a query's own chunk in full, every other chunk by its mean",
    "recurrent": "Transformer-XL: the own chunk, and a memory before it that gets no gradient",
}

# Kinds that see keys through a feature map, and remember a sum of all of them.
SUMMED = ("performer", "linear")

# What a kind may be asked for; each is a column of the table in docs/attention.md.
FEATURES = {
    "two_sided": "self-attention of encoders",
    "causal": "self-attention of decoders",
    "padding": "positions that hold nothing",
    "segments": "several examples packed to a row",
    "prefix": "task.objective=prefix_lm",
    "cross": "attention to an encoder",
    "cached": "decoding token by token",
    "grouped": "model.kv_heads < model.heads",
    "dropout": "model.dropout_attention",
    "bias": "model.position=alibi or t5_bias",
    "relative": "model.position=transformer_xl",
    "bfloat16": "model.dtype=bfloat16",
}

_NO_SCORES = "it has no scores to add to"
_NO_WEIGHTS = "it has no weights to drop"
_GATHERS = "only kinds that have a stretch of scores at hand compute its terms"

REFUSED: dict[str, dict[str, str]] = {
    "dot": {},
    "flash": {"relative": _GATHERS},
    "local": {},
    "longformer": {"relative": _GATHERS},
    "performer": {"bias": _NO_SCORES, "relative": _NO_SCORES, "dropout": _NO_WEIGHTS},
    "linear": {"bias": _NO_SCORES, "relative": _NO_SCORES, "dropout": _NO_WEIGHTS},
    "chunked": {},
    "hierarchical": {
        "bias": "the mean of a chunk stands at no position",
        "relative": "the mean of a chunk stands at no position",
        "prefix": "the mean of a chunk would be of tokens of which only some may be seen",
    },
    "recurrent": {
        "two_sided": "its memory is of what came before",
        "prefix": "its memory is of what came before",
        "cross": "the encoder to look at would be of the same kind",
    },
}


def pattern_of(attention: str) -> tuple[str, ...]:
    """The kinds of model.attention, "local,local,dot": one for each layer, over and over."""
    return tuple(kind.strip() for kind in attention.split(","))


def refusals(attention: str, feature: str) -> Iterator[str]:
    """Why kinds of a pattern cannot do something; each begins with the kind's name."""
    for kind in dict.fromkeys(pattern_of(attention)):
        if reason := REFUSED.get(kind, {}).get(feature):
            yield f"model.attention={kind} does not go with {FEATURES[feature]}: {reason}"
