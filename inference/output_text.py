"""Converts generated ids to text, names sentinels, and cuts the text at stop strings."""

from collections.abc import Sequence

import numpy as np

from inference.prompts import SENTINEL
from input_pipeline.tokenizers.id_tokenizer import NO_END, IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are not, or not yet, a character


def up_to_end(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of the output without padding; includes the end token if there is one."""
    ends = np.flatnonzero(np.isin(tokens, (tokenizer.eos_id, *tokenizer.more_eos_ids)))
    if len(ends):
        return tokens[: ends[0] + 1]
    if tokenizer.eos_id == NO_END:
        return tokens
    real = np.flatnonzero(tokens != tokenizer.pad_id)
    return tokens[: real[-1] + 1] if len(real) else tokens[:0]


def to_text(
    tokens: np.ndarray,
    tokenizer: Tokenizer,
    *,
    preceding: Sequence[int] = (),
    sentinels: bool = False,
) -> str:
    """The text of the tokens when they follow the ids of `preceding`."""
    if isinstance(tokenizer, IdTokenizer):
        return tokenizer.decode(tokens)
    if sentinels:
        return _with_sentinels(tokens, tokenizer)
    if not len(preceding):
        return tokenizer.decode(tokens)
    # The first piece of a text may lose its space, so both parts are decoded together.
    before = tokenizer.decode(preceding)
    both = tokenizer.decode(np.concatenate([preceding, tokens]))
    return both[len(before) :] if both.startswith(before) else tokenizer.decode(tokens)


def _with_sentinels(tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    names = {id: SENTINEL.format(n) for n, id in enumerate(tokenizer.sentinel_ids.tolist())}
    places = np.flatnonzero(np.isin(tokens, tokenizer.sentinel_ids))
    first, *others = np.split(tokens, places)
    return tokenizer.decode(first) + "".join(
        names[int(part[0])] + tokenizer.decode(part[1:]) for part in others
    )


def stop_sequences(stops: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The ids of the stop strings, so that generation of a row can end early.

    It leaves out strings that the tokenizer does not decode back. `cut` finds those, and stop
    strings that the model spells with other ids.
    """
    encoded = [tokenizer.target.encode(stop) for stop in stops]
    pairs = zip(stops, encoded, strict=True)
    return tuple(tuple(ids.tolist()) for stop, ids in pairs if stop in tokenizer.decode(ids))


def cut(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string, without it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def settled(text: str, stops: Sequence[str]) -> str:
    """The part of an unfinished text that more tokens cannot change.

    The rest may be an incomplete character or the beginning of a stop string.
    """
    text = text.rstrip(REPLACEMENT)
    partial = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return text[: len(text) - max(partial, default=0)]
