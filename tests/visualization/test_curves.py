"""Smoothing, axes, groups and marks, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from checkpointing.recorded_run import Series, read_run
from tests.recorded_runs import EVENTS, METRICS, write_run
from visualization import curves


def test_smoothing_is_a_weighted_mean_of_all_values_so_far():
    """With weight w, the value k places back has the weight w ** k."""
    values = [4.0, 2.0, 8.0, 1.0]
    expected = [
        4.0,
        (2 + 0.5 * 4) / 1.5,
        (8 + 0.5 * 2 + 0.25 * 4) / 1.75,
        (1 + 0.5 * 8 + 0.25 * 2 + 0.125 * 4) / 1.875,
    ]
    np.testing.assert_allclose(curves.smoothed(np.array(values), 0.5), expected, rtol=1e-12)


def test_smoothing_keeps_constants_and_with_weight_0_everything():
    np.testing.assert_allclose(curves.smoothed(np.full(50, 3.0), 0.97), 3.0, rtol=1e-12)
    values = np.array([1.0, -7.0, 1e9])
    assert curves.smoothed(values, 0).tolist() == values.tolist()


def test_smoothing_passes_over_what_is_not_finite():
    with_gap = curves.smoothed(np.array([4.0, math.nan, 2.0, math.inf]), 0.5)
    assert with_gap[[0, 2]].tolist() == curves.smoothed(np.array([4.0, 2.0]), 0.5).tolist()
    assert math.isnan(with_gap[1]) and with_gap[3] == math.inf


def test_a_long_curve_is_thinned_to_its_limit_with_both_ends():
    steps = np.arange(1, 10_001)
    thin = curves.thinned(Series(steps, steps * 2.0), 100)
    assert len(thin.steps) == 100
    assert (thin.steps[0], thin.steps[-1]) == (1, 10_000)
    assert (thin.values == thin.steps * 2).all()
    assert np.ptp(np.diff(thin.steps)) <= 1  # evenly
    short = Series(steps[:100], steps[:100] * 1.0)
    assert curves.thinned(short, 100) is short


def test_metrics_are_grouped_with_evaluation_first(tmp_path):
    metrics = [{"step": 1, "train/loss": 1, "zzz": 1, "eval/b/c/loss": 1, "perf/mfu": 1,
                "eval/failures": 1, "eval/a/loss": 2}]  # fmt: skip
    runs = [read_run(write_run(tmp_path, metrics=metrics))]
    assert curves.grouped(runs) == {
        "Evaluation: b/c": ["eval/b/c/loss"],
        "Evaluation": ["eval/failures"],
        "Evaluation: a": ["eval/a/loss"],
        "Training": ["train/loss"],
        "Speed": ["perf/mfu"],
        "Other": ["zzz"],
    }


def test_two_runs_with_other_metrics_are_grouped_together(tmp_path):
    a = write_run(tmp_path / "a", metrics=[{"step": 1, "train/loss": 1}])
    b = write_run(tmp_path / "b", metrics=[{"step": 1, "train/total_loss": 1}])
    groups = curves.grouped([read_run(a), read_run(b)])
    assert groups == {"Training": ["train/loss", "train/total_loss"]}


def test_marks_tell_what_happened_where(tmp_path):
    failed = {"event": "evaluation_failed", "step": 36, "reason": "OSError: full"}
    end = {"event": "end", "step": 37, "reason": "StoppedError: asked to"}
    run = read_run(write_run(tmp_path, events=[*EVENTS[:-1], failed, end]))
    assert [(mark.step, mark.kind) for mark in curves.marks(run)] == [
        (20, "restart"), (30, "not_finite"), (33, "skipped"), (35, "rollback"),
        (36, "evaluation_failed"), (37, "end"),
    ]  # fmt: skip
    assert "rolled back from step 35 to 30" in [mark.text for mark in curves.marks(run)]


def test_a_run_without_troubles_has_no_marks(tmp_path):
    events = [EVENTS[0], EVENTS[1], EVENTS[-1]]
    assert curves.marks(read_run(write_run(tmp_path, metrics=METRICS[:2], events=events))) == []


def test_curves_carry_every_axis(tmp_path):
    data = curves.curve_data(read_run(write_run(tmp_path)))
    assert data["axes"] == {
        "steps": [10, 20, 30, 33, 35, 40],
        "tokens": [1000, 2000, 3000, 3300, 3500, 4000],
        "seconds": [8, 12, 20, 23.6, 26, 32],
    }
    assert data["metrics"]["train/loss"] == {"at": [0, 1, 2, 5], "values": [4.0, 2.0, None, 1.0]}
    assert data["metrics"]["eval/dates/loss"] == {"at": [1, 5], "values": [3.0, 3.5]}
    assert {"at": 4, "kind": "rollback"}.items() <= data["marks"][-1].items()


@pytest.mark.parametrize("metrics", [None, []])
def test_a_run_without_metrics_has_empty_curves(tmp_path, metrics):
    data = curves.curve_data(read_run(write_run(tmp_path, metrics=metrics, events=None)))
    assert data == {
        "axes": {"steps": [], "tokens": None, "seconds": None}, "metrics": {}, "marks": [],
    }  # fmt: skip
