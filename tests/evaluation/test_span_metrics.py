"""SQuAD's scores by hand."""

import numpy as np
import pytest

from evaluation.span_metrics import exact_match, f1, normalized, scores_of_windows, squad_scores
from inference.answer_spans import Window
from input_pipeline.tokenizers.tokenizer import ByteTokenizer


def test_normalized_texts():
    assert normalized("The  U.S. Army,\n a team") == "us army team"
    assert normalized("Theatre, Anna") == "theatre anna"
    assert normalized("an a the !") == ""


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "overlap"),
    [
        ("the cat", "Cat!", 1, 1),
        ("black cat sat", "the cat", 0, 2 * 1 / (3 + 1)),
        ("to be to be", "to be", 0, 2 * 2 / (4 + 2)),
        ("cat", "dog", 0, 0),
        ("", "", 1, 1),
        ("", "cat", 0, 0),
        ("the", "", 1, 1),
    ],
)
def test_scores_by_hand(answer, reference, exact, overlap):
    assert exact_match(answer, reference) == exact
    assert f1(answer, reference) == pytest.approx(overlap)


def test_the_best_of_several_references_counts():
    found = squad_scores(["black cat", "x"], [["dog", "cat"], ["y"]])
    assert found == {"squad_exact_match": 0.0, "squad_f1": pytest.approx(100 * (2 / 3) / 2)}


def test_windows_of_a_question_are_scored_together():
    tokenizer = ByteTokenizer()
    example = dict(place="a:1", text="q", text_pair="wxyz", answers=[(2, 3), (0, 1)])
    logits = np.full((2, 5), -9.0, np.float32)
    logits[:, 0] = 1.0
    low, high = logits.copy(), logits.copy()
    low[:, 2], high[:, 3] = 2.0, 3.0
    # Columns 1 and 2 are w and x; 2 to 4 are x, y, z: the best is y, in the second window.
    windows = [(example, Window(low, 1, 3, 0)), (example, Window(high, 2, 5, 1))]
    other = dict(place="a:2", text="q", text_pair="wxyz", answers=[])
    windows.append((other, Window(logits, 1, 5, 0)))
    score = lambda **more: scores_of_windows(  # noqa: E731
        windows, tokenizer, most_tokens=2, **more
    )
    assert score(unanswerable=True) == {"squad_exact_match": 100.0, "squad_f1": 100.0}
    assert score(unanswerable=False) == {"squad_exact_match": 50.0, "squad_f1": 50.0}
