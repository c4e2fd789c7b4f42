"""Tables of evaluations against scikit-learn and NumPy."""

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from evaluation.eval_details import EvalDetails
from tests.recorded_runs import ANSWERS, CLASSES, POSITIONS
from visualization import eval_tables

LABELS = ["a", "b", "c", "never guessed", "no rows"]


@pytest.fixture
def guessed():
    """(labels, guesses, details) of 200 rows in five classes."""
    rng = np.random.default_rng(0)
    labels_b = rng.integers(0, 4, 200)
    probabilities_bc = rng.random((200, 5))
    probabilities_bc[:, 3] = 0
    collector = EvalDetails("classify_text", LABELS, [{"text": f"row {n}"} for n in range(200)])
    for part in np.split(np.arange(200), [70, 140]):  # in batches, each filled up with a row
        filled = np.append(part, 0)
        weights_b = np.append(np.ones(len(part)), 0)
        collector.add_classes(labels_b[filled], probabilities_bc[filled], weights_b)
    return labels_b, probabilities_bc.argmax(axis=1), collector.record()["classes"]


def test_the_confusion_matrix_is_scikit_learns(guessed):
    labels_b, guesses_b, details = guessed
    expected = sklearn_metrics.confusion_matrix(labels_b, guesses_b, labels=range(5))
    assert eval_tables.confusion_matrix(details).tolist() == expected.tolist()


def test_scores_of_classes_are_scikit_learns(guessed):
    labels_b, guesses_b, details = guessed
    precision, recall, f1, rows = sklearn_metrics.precision_recall_fscore_support(
        labels_b, guesses_b, labels=range(5), zero_division=np.nan
    )
    found = {score.label: score for score in eval_tables.class_table(details)}
    assert set(found) == set(LABELS)
    for place, label in enumerate(LABELS):
        score = found[label]
        np.testing.assert_allclose(
            [score.precision, score.recall], [precision[place], recall[place]], rtol=1e-12
        )
        np.testing.assert_allclose(score.f1, np.nan_to_num(f1[place]), rtol=1e-12)
        assert score.rows == rows[place]
    assert math.isnan(found["never guessed"].precision)
    assert math.isnan(found["no rows"].recall)


def test_the_worst_class_comes_first():
    scores = eval_tables.class_table(CLASSES["classes"])
    assert [score.label for score in scores] == ["cow", "dog", "cat"]
    # dog: 2 right of 2 rows and 5 guesses; F1 = 2 * 2 / (2 + 5).
    assert (scores[1].precision, scores[1].recall, scores[1].f1) == (0.4, 1.0, 4 / 7)


def test_confused_pairs_are_the_errors_most_frequent_first():
    pairs = eval_tables.confused_pairs(CLASSES["classes"])
    assert pairs == [("cow", "dog", 2), ("cat", "dog", 1)]


def test_loss_by_position_is_a_mean_without_positions_of_no_weight():
    assert eval_tables.loss_by_position(POSITIONS["positions"]) == ([0, 1, 3], [4.0, 3.0, 1.0])


def test_bins_of_positions_are_weighted_means():
    rng = np.random.default_rng(0)
    losses, weights = rng.random(1000), rng.integers(1, 9, 1000)
    centres, means = eval_tables.binned(list(range(1000)), losses, weights, most=300)
    size = 4  # of the smallest bins that make at most 300
    parts = zip(losses.reshape(-1, size), weights.reshape(-1, size), strict=True)
    expected = [np.average(part, weights=weight) for part, weight in parts]
    np.testing.assert_allclose(means, expected, rtol=1e-12)
    np.testing.assert_allclose(centres, np.arange(1.5, 1000, 4))
    assert eval_tables.binned([], [], []) == ([], [])


def test_records_of_another_form_are_not_shown():
    for details in (CLASSES, ANSWERS, POSITIONS, {"step": 1, "eval_set": "x"}):
        assert eval_tables.is_valid(details)
    for damaged in (
        {"classes": {"labels": ["a"], "confusion": [[0, 1, 1]], "worst": []}},
        {"classes": {"labels": ["a"], "confusion": [["x"]], "worst": []}},
        {"classes": 3},
        {"answers": {"worst": [{}], "best": [], "by_length": []}},
        {"positions": {"nll": [1, 2]}},
        {"positions": {"nll": [1, "x"], "weight": [1, 1]}},
    ):
        assert not eval_tables.is_valid(damaged)
