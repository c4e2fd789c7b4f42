"""From generated ids to text: with names of sentinels, and cut at stop strings."""

from collections.abc import Sequence

import numpy as np

from inference.prompts import SENTINEL
from input_pipeline.tokenizers.id_tokenizer import NO_END, IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer

BROKEN = "\ufffd"  # what decoding shows for bytes that are no character, or not yet one


def up_to_end(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens up to the end of the output; the end itself is one of them if there was room."""
    ends = np.flatnonzero(np.isin(tokens, (tokenizer.eos_id, *tokenizer.more_eos_ids)))
    if len(ends):
        return tokens[: ends[0] + 1]
    if tokenizer.eos_id == NO_END:
        return tokens
    real = np.flatnonzero(tokens != tokenizer.pad_id)
    return tokens[: real[-1] + 1] if len(real) else tokens[:0]


def to_text(
    tokens: np.ndarray, tokenizer: Tokenizer, *, behind: Sequence[int] = (), sentinels: bool = False
) -> str:
    """The text of the tokens as it reads after those of `behind`."""
    if isinstance(tokenizer, IdTokenizer):
        return tokenizer.decode(tokens)
    if sentinels:
        return _with_sentinels(tokens, tokenizer)
    if not len(behind):
        return tokenizer.decode(tokens)
    # A piece at the start of a text may lose its space, so both are decoded together.
    before = tokenizer.decode(behind)
    both = tokenizer.decode(np.concatenate([behind, tokens]))
    return both[len(before) :] if both.startswith(before) else tokenizer.decode(tokens)


def _with_sentinels(tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    names = {id: SENTINEL.format(n) for n, id in enumerate(tokenizer.sentinel_ids.tolist())}
    places = np.flatnonzero(np.isin(tokens, tokenizer.sentinel_ids))
    first, *others = np.split(tokens, places)
    return tokenizer.decode(first) + "".join(
        names[int(part[0])] + tokenizer.decode(part[1:]) for part in others
    )


def stop_sequences(stops: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Tokens of the stop strings, which end the generation of a row early.

    `cut` handles strings that the tokenizer cannot decode back, and other spellings.
    """
    encoded = [tokenizer.encode(stop) for stop in stops]
    pairs = zip(stops, encoded, strict=True)
    return tuple(tuple(ids.tolist()) for stop, ids in pairs if stop in tokenizer.decode(ids))


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def settled(text: str, stops: Sequence[str]) -> str:
    """The part of an unfinished text that cannot change.

    The rest may be half of a character, or the beginning of a stop string.
    """
    text = text.rstrip(BROKEN)
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return text[: len(text) - max(begun, default=0)]
