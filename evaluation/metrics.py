"""Metrics of a model's outputs: pure functions of strings, or of NumPy arrays with B rows."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

_NO_WORD = re.compile(r"[^a-z0-9]+")


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus BLEU in percent, and sacrebleu's signature.

    It uses sacrebleu's defaults: tokenizer `13a`, case-sensitive, exponential smoothing.
    """
    return _by_sacrebleu(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus chrF2 in percent (1 to 6 characters, no words), and sacrebleu's signature."""
    return _by_sacrebleu(CHRF(), hypotheses, references)


def _by_sacrebleu(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


SACREBLEU = {"bleu": bleu, "chrf": chrf}


def signatures(metrics: Iterable[str]) -> dict[str, str]:
    """sacrebleu's signatures, by name of the metric; they do not depend on the text."""
    return {name: SACREBLEU[name]([""], [""])[1] for name in metrics if name in SACREBLEU}


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """F-measures (0 to 1) of common words, common word pairs and the longest common subsequence.

    Returns rouge1, rouge2 and rougeL as the package rouge-score defines them, as means over the
    texts. That package would also install nltk. Words are its default: runs of a-z and 0-9 in lower
    case, not stemmed. So an accented letter ends a word, and text in other scripts has no words. A
    text is one sequence; rougeLsum works line by line, and the ROUGE-1.5.5 script can stem.
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

    Each column of the dynamic-programming table is one integer: bit i is 0 if the length grows at
    a[i]. One addition updates a column (Hyyrö 2004).
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
    """The scores of all text metrics in `metrics`, by name; rouge has three scores."""
    scores = {}
    for name in metrics:
        if name in SACREBLEU:
            scores[name], _ = SACREBLEU[name](hypotheses, references)
        elif name == "rouge":
            scores |= rouge(hypotheses, references)
    return scores


def macro_f1(labels_b: np.ndarray, predictions_b: np.ndarray) -> float:
    """The mean F1 over the classes that occur or are predicted."""
    return _by_sklearn("f1_score", labels_b, predictions_b, average="macro")


def matthews(labels_b: np.ndarray, predictions_b: np.ndarray) -> float:
    """Matthews' correlation for any number of classes; 0 if only one occurs or is predicted."""
    return _by_sklearn("matthews_corrcoef", labels_b, predictions_b)


def _by_sklearn(name: str, labels_b: np.ndarray, predictions_b: np.ndarray, **options) -> float:
    import sklearn.metrics  # slow to import (a second), so only runs with such a metric do

    with warnings.catch_warnings():  # it warns about sets with few rows per class
        warnings.simplefilter("ignore", UserWarning)
        return float(getattr(sklearn.metrics, name)(labels_b, predictions_b, **options))


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The entities (type, first word, end) that tags such as B-PER, I-PER and O mark.

    As in CoNLL's evaluation and seqeval's default: an I- that continues no entity of its type
    begins one, and S- and E- end one. A tag without such a prefix is the type of its own run.
    """
    found, start, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-") if tag[1:2] == "-" else ("I", "", tag)
        is_outside = tag == "O"
        if kind and (is_outside or prefix in "BSU" or name != kind):
            found.add((kind, start, place))
            kind = ""
        if not kind and not is_outside:
            start, kind = place, name
        if kind and prefix in "SUEL":
            found.add((kind, start, place + 1))
            kind = ""
    return found


def entity_f1(expected: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """The F1 of entities whose type and both ends are right, over all texts; 0 without any."""
    common = ours = theirs = 0
    for wanted, found in zip(expected, predicted, strict=True):
        wanted, found = entities(wanted), entities(found)
        common, ours, theirs = common + len(wanted & found), ours + len(found), theirs + len(wanted)
    return _f_measure(common, ours, theirs)


def pearson(x_b: np.ndarray, y_b: np.ndarray) -> float:
    """Pearson's correlation; 0 if x or y is constant, because it is undefined there."""
    return _by_scipy("pearsonr", x_b, y_b)


def spearman(x_b: np.ndarray, y_b: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return _by_scipy("spearmanr", x_b, y_b)


def _by_scipy(name: str, x_b: np.ndarray, y_b: np.ndarray) -> float:
    import scipy.stats  # slow to import, as scikit-learn is

    x_b, y_b = np.asarray(x_b, np.float64), np.asarray(y_b, np.float64)
    if (x_b == x_b[0]).all() or (y_b == y_b[0]).all():
        return 0.0
    return float(getattr(scipy.stats, name)(x_b, y_b).statistic)


def in_top(k: int, scores_bc: np.ndarray, labels_b: np.ndarray) -> np.ndarray:
    """Whether each row's label is among its k best classes (B,). Ties and NaN count as wrong.

    `in_top(1, ...)` is accuracy. scikit-learn's top-k accuracy breaks ties by class number and
    refuses NaN.
    """
    own_b1 = np.take_along_axis(scores_bc, labels_b[:, None], axis=1)
    not_below_bc = ~(scores_bc < own_b1)  # the label itself is one of them
    return not_below_bc.sum(axis=1) <= k


def calibration_error(
    count_u: np.ndarray, confidence_u: np.ndarray, correct_u: np.ndarray
) -> float:
    """The expected calibration error (0 to 1) from sums over the predictions of each of U bins.

    It is the mean of |mean confidence - accuracy| of the bins, weighted by their counts
    (arXiv:1706.04599). `training.losses.CalibrationSums` has these sums.
    """
    gaps_u = np.abs(confidence_u.astype(np.float64) - correct_u)  # times the bin's count
    return float(gaps_u.sum() / max(count_u.sum(), 1))


def regression_scores(
    metrics: Iterable[str], expected_b: np.ndarray, predicted_b: np.ndarray
) -> dict[str, float]:
    """The correlations in `metrics`, by name."""
    known = {"pearson": pearson, "spearman": spearman}
    return {name: known[name](expected_b, predicted_b) for name in metrics if name in known}


def class_scores(
    metrics: Iterable[str],
    labels_b: np.ndarray,
    probabilities_bc: np.ndarray,
    values_c: np.ndarray | None = None,
) -> dict[str, float]:
    """The scores of all class metrics in `metrics`, by name.

    `values_c` are the numbers that the classes stand for. The model predicts their expected value,
    which may lie between two classes.
    """
    scores = {}
    predictions_b = probabilities_bc.argmax(axis=1)
    for name in metrics:
        match name:
            case "macro_f1":
                scores[name] = macro_f1(labels_b, predictions_b)
            case "matthews":
                scores[name] = matthews(labels_b, predictions_b)
            case "top5_accuracy":
                scores[name] = float(in_top(5, probabilities_bc, labels_b).mean())
            case "pearson" | "spearman":
                correlation = pearson if name == "pearson" else spearman
                expected_b = probabilities_bc[:, : len(values_c)] @ values_c
                scores[name] = correlation(values_c[labels_b], expected_b)
    return scores
