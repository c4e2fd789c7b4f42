"""BERT's masking: of the chosen ids 80% become mask, 10% a random id, 10% stay."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.rows import Fields
from input_pipeline.tokenizers.tokenizer import Tokenizer


def masked(
    texts: Sequence[np.ndarray],
    rng: np.random.Generator,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
) -> Fields:
    """One or two texts with an encoder's special ids, and a share of the other ids masked."""
    fields = tokenizer.encoder_template.with_special_tokens(texts)
    tokens, maskable = fields["inputs"], np.flatnonzero(fields.pop("is_text"))
    count = max(1, round(len(maskable) * noise_rate))
    if whole_words:
        starts = np.concatenate([tokenizer.word_starts(text) for text in texts])
        chosen = maskable[_whole_words(starts, count, rng)]
    else:
        chosen = rng.permutation(maskable)[:count]
    inputs, fate = tokens.copy(), rng.random(len(chosen))
    anything = tokenizer.text_ids[rng.integers(0, len(tokenizer.text_ids), len(chosen))]
    inputs[chosen] = np.where(
        fate < 0.8, tokenizer.mask_id, np.where(fate < 0.9, anything, tokens[chosen])
    )
    weights = np.zeros(len(tokens))
    weights[chosen] = 1
    return {**fields, "inputs": inputs, "targets": tokens, "weights": weights}


def _whole_words(starts: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of random whole words, as many words as fit into `count` positions.

    The first word is always taken, so that at least one word is masked.
    """
    if not len(starts):
        return np.empty(0, np.int64)
    word_of = np.cumsum(starts) - starts[0]
    sizes = np.bincount(word_of)
    order = rng.permutation(len(sizes))
    taken = np.cumsum(sizes[order]) <= count
    taken[0] = True
    return np.flatnonzero(np.isin(word_of, order[taken]))
