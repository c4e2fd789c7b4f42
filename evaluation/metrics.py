"""Scores of a model's answers: pure functions of strings, or of NumPy arrays with a value a row."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

_NO_WORD = re.compile(r"[^a-z0-9]+")


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU of a corpus in percent, and the signature that says how sacrebleu counted.

    Its defaults: text cut by `13a`, upper and lower case told apart, exponential smoothing.
    """
    return _by_sacrebleu(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """chrF2 of a corpus in percent, and its signature: 1 to 6 characters, no words."""
    return _by_sacrebleu(CHRF(), hypotheses, references)


def _by_sacrebleu(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


SACREBLEU = {"bleu": bleu, "chrf": chrf}


def signatures(metrics: Iterable[str]) -> dict[str, str]:
    """The signatures of those that sacrebleu counts: they do not depend on the text."""
    return {name: SACREBLEU[name]([""], [""])[1] for name in metrics if name in SACREBLEU}


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """F-measures of common words, pairs of words and longest common subsequence, 0 to 1.

    Means over the texts of what the package rouge-score calls rouge1, rouge2 and rougeL, with its
    default words: runs of a-z and 0-9 in lower case, not stemmed. So a letter with an accent ends
    a word, and text in other scripts has none. The text is one sequence: this is not rougeLsum,
    which takes it line by line, nor the ROUGE-1.5.5 script, which can stem and leave words out.
    """
    pairs = [(_words(h), _words(r)) for h, r in zip(hypotheses, references, strict=True)]
    return {
        "rouge1": _mean(_ngram_f(1, *pair) for pair in pairs),
        "rouge2": _mean(_ngram_f(2, *pair) for pair in pairs),
        "rougeL": _mean(_f_measure(_common_length(*pair), *map(len, pair)) for pair in pairs),
    }


def _words(text: str) -> list[str]:
    return _NO_WORD.sub(" ", text.lower()).split()


def _ngram_f(n: int, hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    ours, theirs = (
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for words in (hypothesis, reference)
    )
    return _f_measure((ours & theirs).total(), ours.total(), theirs.total())


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence.

    A whole column of the usual table fits into one integer, whose bit i is 0 where the length grows
    at a[i]; addition carries all of its changes at once (Hyyrö 2004).
    """
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    column = full = (1 << len(a)) - 1
    for word in b:
        matches = column & places.get(word, 0)
        column = (column + matches) | (column - matches)
    return len(a) - (column & full).bit_count()


def _f_measure(common: int, ours: int, theirs: int) -> float:
    """The harmonic mean of common / ours and common / theirs."""
    return 2 * common / (ours + theirs) if common else 0.0


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def text_scores(
    metrics: Iterable[str], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """Those of the metrics that are of text, by name; rouge has three."""
    scores = {}
    for name in metrics:
        if name in SACREBLEU:
            scores[name], _ = SACREBLEU[name](hypotheses, references)
        elif name == "rouge":
            scores |= rouge(hypotheses, references)
    return scores


def macro_f1(labels_n: np.ndarray, guesses_n: np.ndarray) -> float:
    """The mean of each class's F1, over the classes that occur or are guessed."""
    common, ours, theirs = _confusion(labels_n, guesses_n)
    occurs = (ours + theirs) > 0
    return float(np.mean(2 * common[occurs] / (ours + theirs)[occurs]))


def matthews(labels_n: np.ndarray, guesses_n: np.ndarray) -> float:
    """Matthews' correlation for any number of classes; 0 where only one occurs or is guessed."""
    common, ours, theirs = _confusion(labels_n, guesses_n)
    total = len(labels_n)
    covariance = common.sum() * total - ours @ theirs
    variances = (total**2 - ours @ ours) * (total**2 - theirs @ theirs)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def _confusion(
    labels_n: np.ndarray, guesses_n: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each class: how often it is guessed rightly, how often at all, and how often it occurs."""
    classes = int(max(labels_n.max(), guesses_n.max())) + 1
    right_n = labels_n[labels_n == guesses_n]
    counts = [np.bincount(values, minlength=classes) for values in (right_n, guesses_n, labels_n)]
    return tuple(count.astype(np.float64) for count in counts)


def pearson(x_n: np.ndarray, y_n: np.ndarray) -> float:
    """Pearson's correlation; 0 where either side never changes, for it is not defined there."""
    x_n, y_n = np.asarray(x_n, np.float64), np.asarray(y_n, np.float64)
    if (x_n == x_n[0]).all() or (y_n == y_n[0]).all():
        return 0.0
    x_n, y_n = x_n - x_n.mean(), y_n - y_n.mean()
    return float(x_n @ y_n / np.sqrt((x_n @ x_n) * (y_n @ y_n)))


def spearman(x_n: np.ndarray, y_n: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of theirs."""
    return pearson(_ranks(x_n), _ranks(y_n))


def _ranks(values_n: np.ndarray) -> np.ndarray:
    _, group_n, sizes = np.unique(values_n, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group_n]


def in_top(k: int, scores_nc: np.ndarray, labels_n: np.ndarray) -> np.ndarray:
    """Whether a row's label is among its k best classes; a tie does not help, and neither does NaN.

    So `in_top(1, ...)` is what the accuracy of a classifier counts.
    """
    own_n1 = np.take_along_axis(scores_nc, labels_n[:, None], axis=1)
    not_below_nc = ~(scores_nc < own_n1)  # the label itself is one of them
    return not_below_nc.sum(axis=1) <= k


def class_scores(
    metrics: Iterable[str],
    labels_n: np.ndarray,
    probabilities_nc: np.ndarray,
    values_c: np.ndarray | None = None,
) -> dict[str, float]:
    """Those of the metrics that are of classes, by name.

    `values_c` are the numbers that the classes stand for. The model's guess at such a number is
    its expected value, which may lie between two classes.
    """
    scores = {}
    guesses_n = probabilities_nc.argmax(axis=1)
    for name in metrics:
        match name:
            case "macro_f1":
                scores[name] = macro_f1(labels_n, guesses_n)
            case "matthews":
                scores[name] = matthews(labels_n, guesses_n)
            case "top5_accuracy":
                scores[name] = float(in_top(5, probabilities_nc, labels_n).mean())
            case "pearson" | "spearman":
                correlation = pearson if name == "pearson" else spearman
                expected_n = probabilities_nc[:, : len(values_c)] @ values_c
                scores[name] = correlation(values_c[labels_n], expected_n)
    return scores
