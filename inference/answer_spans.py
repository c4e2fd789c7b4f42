"""The likeliest answer to a question, from the logits of all windows of its context."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """What the model says of one window of a context."""

    logits_2t: np.ndarray  # of each column to be the first of the answer, and to be the last
    start: int  # the first column of the context
    end: int  # the column after its last
    first: int  # tokens of the context before the window


class FoundAnswer(NamedTuple):
    """An answer, as characters of the context."""

    text: str
    start: int
    end: int
    score: float  # the sum of the logits of its first and its last token
    # The same of the first token of the row, which stands for no answer: the lowest of all windows.
    no_answer: float


def best_answer(
    windows: Sequence[Window], context: str, spans: np.ndarray, most_tokens: int
) -> FoundAnswer:
    """The answer with the highest score, of at most `most_tokens` tokens.

    `spans` has the first character and the end of each token of the context, (n, 2). Tokens
    without text are no part of an answer. A context without others has the answer "", with the
    score of no answer.
    """
    best, place = -np.inf, (0, 0)
    for window in windows:
        size = window.end - window.start
        if size <= 0:
            continue
        starts_c, ends_c = window.logits_2t[:, window.start : window.end].astype(np.float64)
        scores_cc = starts_c[:, None] + ends_c
        here = spans[window.first : window.first + size]
        has_text_c = here[:, 1] > here[:, 0]
        distance_cc = np.arange(size) - np.arange(size)[:, None]
        allowed_cc = (distance_cc >= 0) & (distance_cc < most_tokens)
        allowed_cc &= has_text_c & has_text_c[:, None]
        scores_cc = np.where(allowed_cc, scores_cc, -np.inf)
        first, last = np.unravel_index(scores_cc.argmax(), scores_cc.shape)
        if scores_cc[first, last] > best:
            best, place = scores_cc[first, last], (int(here[first, 0]), int(here[last, 1]))
    start, end = place
    text = context[start:end]
    start += len(text) - len(text.lstrip())  # tokens may begin with a space
    text = text.strip()
    none = min(float(window.logits_2t[0, 0] + window.logits_2t[1, 0]) for window in windows)
    score = float(best) if np.isfinite(best) else none
    return FoundAnswer(text, start, start + len(text), score, none)
