"""When a cell is done, and which values count."""

import pytest

from sweeps.cell_results import NOT_BEGUN, read_result
from tests.recorded_runs import EVENTS, METRICS, write_run

MATCH, LOSS = "eval/dates/exact_match", "eval/dates/loss"


def test_a_finished_run_has_the_values_of_its_last_step(tmp_path):
    result = read_result(write_run(tmp_path), [MATCH, "train/loss"], 40)
    assert result.is_done and result.step == 40
    assert result.values == {MATCH: 0.75, "train/loss": 1.0}
    assert (result.seconds, result.parameters) == (34.0, 100)


def test_the_last_value_counts_and_not_the_best(tmp_path):
    assert read_result(write_run(tmp_path), [LOSS], 40).values == {LOSS: 3.5}  # 3.0 at step 20


def test_of_speeds_the_median_counts(tmp_path):
    speeds = [{"step": s, "perf/steps_per_second": v} for s, v in ((10, 9.0), (20, 2.0), (40, 4.0))]
    workdir = write_run(tmp_path, metrics=[*METRICS, *speeds])
    values = read_result(workdir, ["perf/steps_per_second"], 40).values
    assert values == {"perf/steps_per_second": 4.0}


def test_a_run_without_an_end_is_not_done(tmp_path):
    result = read_result(write_run(tmp_path, events=EVENTS[:-1]), [MATCH], 40)
    assert not result.is_done and result.is_begun and result.values == {}
    stopped = {**EVENTS[-1], "reason": "StoppedError: asked"}
    result = read_result(write_run(tmp_path, events=[*EVENTS[:-1], stopped]), [MATCH], 40)
    assert not result.is_done and result.status == "ended by StoppedError: asked"


def test_a_run_whose_last_evaluation_failed_is_not_done(tmp_path):
    assert not read_result(write_run(tmp_path, metrics=METRICS[:-1]), [MATCH], 40).is_done


def test_a_run_that_is_asked_for_more_steps_is_not_done(tmp_path):
    assert not read_result(write_run(tmp_path), [MATCH], 80).is_done


@pytest.mark.parametrize(("steps", "value"), [(20, 0.25), (40, 0.75)])
def test_a_rung_is_done_when_its_step_has_a_score_even_if_the_run_went_on(tmp_path, steps, value):
    result = read_result(write_run(tmp_path), [MATCH], steps, exact=True)
    assert result.is_done and result.values == {MATCH: value}
    assert not read_result(tmp_path, [MATCH], 30, exact=True).is_done


def test_a_pattern_stands_for_the_numbers_that_the_run_recorded(tmp_path):
    by_length = {f"eval/length_{n}/loss": float(n) for n in (128, 8, 16)}
    layers = {"optim/grad_norm_layer/encoder_00": 0.5}
    lines = [*METRICS, {"step": 40, **by_length, **layers, "eval/length_x/loss": 9.0}]
    patterns = ["eval/length_*/loss", "optim/grad_norm_layer/encoder_*", "train/by_layer_*"]
    result = read_result(write_run(tmp_path, metrics=lines), patterns, 40)
    assert result.is_done
    assert list(result.values) == [*sorted(by_length, key=by_length.get), *layers]
    assert result.values == {**by_length, **layers}
    assert not read_result(tmp_path, ["eval/distance_*/loss"], 40).is_done  # no score of it


def test_nothing_there(tmp_path):
    assert read_result(tmp_path / "nothing", [MATCH], 40) == NOT_BEGUN
    assert not NOT_BEGUN.is_begun
