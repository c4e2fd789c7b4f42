"""Exact match and F1 of answers, as SQuAD defines them (arXiv:1606.05250, arXiv:1806.03822)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from inference.answer_spans import Window, best_answer
from input_pipeline.sources.base import Example
from input_pipeline.tokenizers.tokenizer import Tokenizer

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """A text in lower case, without punctuation, articles and repeated spaces."""
    without = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", without).split())


def exact_match(answer: str, reference: str) -> float:
    """1 if both texts are the same, normalised; else 0."""
    return float(normalized(answer) == normalized(reference))


def f1(answer: str, reference: str) -> float:
    """The F1 of the words of both texts. If one is empty, 1 if both are, else 0."""
    ours, theirs = normalized(answer).split(), normalized(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def squad_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means in percent, with the best of all references of each answer."""
    metrics = {"squad_exact_match": exact_match, "squad_f1": f1}
    return {
        name: 100 * float(np.mean([max(metric(answer, each) for each in right)
                                   for answer, right in zip(answers, references, strict=True)]))
        for name, metric in metrics.items()
    }  # fmt: skip


def scores_of_windows(
    windows: Sequence[tuple[Example, Window]],
    tokenizer: Tokenizer,
    *,
    most_tokens: int,
    unanswerable: bool,
) -> dict[str, float]:
    """The scores of the questions whose windows these are, in any order.

    With `unanswerable`, no answer is given where that has the higher score.
    """
    by_question: dict[str, tuple[Example, list[Window]]] = {}
    for example, window in windows:
        by_question.setdefault(example["place"], (example, []))[1].append(window)
    answers, references = [], []
    for example, found in by_question.values():
        context = example["text_pair"]
        _, spans = tokenizer.encode_with_spans(context)
        best = best_answer(found, context, spans, most_tokens)
        is_none = unanswerable and best.no_answer > best.score
        answers.append("" if is_none else best.text)
        references.append([context[start:end] for start, end in example["answers"]] or [""])
    return squad_scores(answers, references)
