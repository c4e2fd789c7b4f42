"""Next-token prediction: inputs and targets are one text, shifted by one. Nothing else shifts."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.rows import Fields
from input_pipeline.tokenizers.tokenizer import Tokenizer


def next_token(text: np.ndarray, given: int, tokenizer: Tokenizer) -> Fields:
    """Predicts each id from those before it, except the first `given` ids of the text.

    If no special id begins a text, its first id is not predicted, either.
    """
    return shifted(tokenizer.causal_prefix, text, given)


def shifted(start: Sequence[int], text: np.ndarray, given: int) -> Fields:
    """Predicts each id of the text after the first `given`; `start` is only read."""
    tokens = np.concatenate([np.asarray(start, np.int64), text])
    return {
        "inputs": tokens[:-1],
        "targets": tokens[1:],
        "weights": np.arange(1, len(tokens)) >= len(start) + given,
    }


def added_by_shift(tokenizer: Tokenizer) -> int:
    """Columns that next-token prediction needs beyond the ids of a text; may be -1.

    The last id is only a target, never an input. So a text of n ids needs n columns if bos
    precedes it, and n - 1 if nothing does.
    """
    return len(tokenizer.causal_prefix) - 1
