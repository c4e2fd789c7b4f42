"""Evaluating eval sets: the progress that a terminal shows."""

import io
import re
import sys

import pytest

from evaluation import eval_sets
from evaluation.evaluator import EvalSet
from training.metric_writers import Reporter


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Counter:
    """Takes the place of an evaluator."""

    def evaluate(self, params, split):
        return {"batches": float(sum(1 for _ in split.batches))}


SETS = {"first": EvalSet([0, 1, 2], 0, False), "second": EvalSet([3], 0, False)}
SCORES = {"eval/first/batches": 3.0, "eval/second/batches": 1.0}


def evaluate(**options):
    return eval_sets.evaluate(Counter(), {}, SETS, **options)


def test_evaluation_has_a_bar_of_its_own_below_that_of_training(tmp_path, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    calls = []
    with Reporter(tmp_path, resume_step=0, last_step=10) as reporter:
        reporter.progress(5)
        found = evaluate(show_progress=True, keep_bars=False, between=lambda: calls.append(1))
        reporter.log("hello")
    assert found == SCORES and len(calls) == 4
    shown = screen.getvalue()
    # The total is known although batches are made on demand.
    assert re.search(r"evaluating first: +0%.*0/3", shown)
    assert re.search(r"evaluating second: +0%.*0/1", shown)
    # The training bar has its own line, and the evaluation's is wiped out behind it.
    assert "\n\revaluating first" in shown.replace("\n\n", "\n")
    assert "\rhello\n" in shown and "evaluating" not in shown.partition("hello")[2]


def test_a_stop_in_the_middle_closes_the_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(show_progress=True, keep_bars=False, between=stop)
    assert screen.getvalue().endswith("\r")


def test_no_progress_bar_without_a_terminal(capsys):
    assert evaluate(show_progress=True) == SCORES
    assert capsys.readouterr().err == ""
