"""Tables and curves from the details of evaluations: classes, answers, positions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_SHOWN_CLASSES = 100  # in a confusion matrix; of more, only the most confused pairs


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """Precision and recall of one class."""

    label: str
    precision: float  # NaN if the class was never guessed
    recall: float  # NaN if no row has the class
    f1: float  # 0 if nothing was right
    rows: int


def confusion_matrix(details: Mapping[str, Any]) -> np.ndarray:
    """Rows by label (first axis) and guess (second axis), from the sparse form of a record."""
    size = len(details["labels"])
    matrix = np.zeros((size, size), int)
    for label, guess, count in details["confusion"]:
        matrix[label, guess] += count
    return matrix


def class_table(details: Mapping[str, Any]) -> list[ClassScore]:
    """Precision, recall and F1 of each class that occurs, the worst F1 first."""
    # From the sparse form: thousands of classes would make a matrix of millions of entries.
    right, rows, guesses = np.zeros((3, len(details["labels"])), int)
    for label, guess, count in details["confusion"]:
        rows[label] += count
        guesses[guess] += count
        right[label] += count if label == guess else 0
    scores = [
        ClassScore(
            label,
            right[i] / guesses[i] if guesses[i] else math.nan,
            right[i] / rows[i] if rows[i] else math.nan,
            2 * right[i] / (rows[i] + guesses[i]),
            int(rows[i]),
        )
        for i, label in enumerate(details["labels"])
        if rows[i] or guesses[i]
    ]
    return sorted(scores, key=lambda score: (score.f1, score.label))


def confused_pairs(details: Mapping[str, Any], most: int = 15) -> list[tuple[str, str, int]]:
    """(label, guess, rows) of the most frequent errors."""
    labels = details["labels"]
    wrong = [(count, label, guess) for label, guess, count in details["confusion"]]
    wrong = sorted((each for each in wrong if each[1] != each[2]), key=lambda e: (-e[0], e[1:]))
    return [(labels[label], labels[guess], count) for count, label, guess in wrong[:most]]


def loss_by_position(positions: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """(positions, mean negative log-likelihood in nats), without positions of no weight."""
    nll, weight = (np.asarray(positions[key], float) for key in ("nll", "weight"))
    nonzero = np.flatnonzero(weight > 0)
    return nonzero.tolist(), (nll[nonzero] / weight[nonzero]).tolist()


def binned(
    positions: Sequence[int], losses: Sequence[float], weights: Sequence[float], most: int = 256
) -> tuple[list[float], list[float]]:
    """Means over runs of neighbouring positions, so that at most `most` points are left."""
    size = -(-len(positions) // most) if positions else 1
    starts = np.arange(0, len(positions), size)
    total = np.add.reduceat(np.asarray(losses) * weights, starts) if len(starts) else []
    weight = np.add.reduceat(np.asarray(weights, float), starts) if len(starts) else []
    centres = [float(np.mean(positions[start : start + size])) for start in starts.tolist()]
    return centres, [float(t / w) for t, w in zip(total, weight, strict=True)]


def is_valid(details: Mapping[str, Any]) -> bool:
    """Whether a record of evaluate.py --details has the form that the tables need."""
    try:
        if "classes" in details:
            class_table(details["classes"])
            rows = details["classes"]["worst"]
            _check_rows(rows, texts=("text", "label", "guess"), numbers=("probability",))
        if "answers" in details:
            for part in ("worst", "best"):
                texts = ("source", "answer", "expected")
                _check_rows(details["answers"][part], texts=texts, numbers=("chrf",))
            numbers = ("from", "to", "rows", "exact_match", "chrf")
            _check_rows(details["answers"]["by_length"], numbers=numbers)
        if "positions" in details:
            loss_by_position(details["positions"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def _check_rows(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str] = (), numbers: Sequence[str] = ()
) -> None:
    """Raises if a row lacks a text, or has anything but a finite number or None as a number."""
    for row in rows:
        for key in texts:
            _ = row[key]
        for key in numbers:
            if row[key] is not None and not math.isfinite(row[key]):
                raise ValueError(key)
