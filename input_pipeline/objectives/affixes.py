"""Texts with the special ids before, between and after them."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.rows import Fields
from input_pipeline.tokenizers.tokenizer import Tokenizer


def between(affixes: tuple[Sequence[int], Sequence[int]], text: np.ndarray) -> np.ndarray:
    """A text with the special ids before and after it."""
    return np.concatenate([affixes[0], text, affixes[1]]).astype(np.int32)


def between_separators(texts: Sequence[np.ndarray], tokenizer: Tokenizer) -> Fields:
    """One or two texts with an encoder's special ids; two also have token types."""
    row = tokenizer.encoder_template.with_special_tokens(texts)
    del row["is_text"]
    return row
