"""A time limit for the `tokenizers` library, which runs what a tokenizer's file says.

Some regular expressions take hours on a long text of one repeated character, and so do long pieces
of a vocabulary. The library cannot be interrupted. So it encodes in another thread, and the caller
waits only so long; the thread goes on until the process ends. This needs the library's functions
for batches: those for one text hold Python's lock, so that nobody could stop waiting.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

LIMIT_SECONDS = 60.0
SLOWEST = 10_000  # characters for which a second more is allowed

Text = str | tuple[str, str]  # a text, or a pair of texts
Result = TypeVar("Result")


def encode(tokenizer: Tokenizer, text: Text, **options: Any) -> Encoding:
    """`tokenizer.encode` of a text or a pair; raises ValueError after the time limit."""
    return _within_limit(lambda: tokenizer.encode_batch([text], **options), [text])[0]


def encode_batch(tokenizer: Tokenizer, texts: Sequence[Text], **options: Any) -> list[Encoding]:
    """`tokenizer.encode_batch_fast`; raises ValueError after the time limit."""
    return _within_limit(lambda: tokenizer.encode_batch_fast(texts, **options), texts)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """`tokenizer.decode`; raises ValueError after the time limit."""
    return _within_limit(lambda: tokenizer.decode_batch([ids]), [ids])[0]


def _within_limit(call: Callable[[], Result], inputs: Sequence[Sequence]) -> Result:
    """Returns call(), or raises what it raises; ValueError if it takes too long for its inputs."""
    seconds = LIMIT_SECONDS + sum(map(len, inputs)) / SLOWEST
    results, errors = [], []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # a panic of the library is no Exception
            errors.append(error)

    thread = threading.Thread(target=run, name="tokenizers", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise ValueError(
            f"its rules need more than {seconds:.0f} s for this; long lines may be the cause"
        )
    if errors:
        raise errors[0]
    return results[0]
