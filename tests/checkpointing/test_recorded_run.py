"""Run directories are read in any state: running, killed, damaged, old or missing."""

import json
import math

import numpy as np
import pytest

from checkpointing import checkpoint_manager, recorded_run
from checkpointing.recorded_run import Series, read_run
from experiment.schema import ConfigError
from tests.recorded_runs import CLASSES, CONFIG, EVENTS, METRICS, write_run


def snapshot(directory):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


def test_a_complete_run_is_read_without_changing_it(tmp_path):
    samples = {"00000020_dates.txt": "first", "00000040_dates.txt": "second", "notes": "?"}
    workdir = write_run(tmp_path / "run", samples=samples, details=[CLASSES])
    (workdir / "checkpoints" / "40").mkdir(parents=True)
    (workdir / "checkpoints" / "20").mkdir()
    (workdir / "checkpoints" / "40.tmp").mkdir()
    (workdir / "evaluations.jsonl").write_text('{"step": 40, "split": "all"}\n')
    before = snapshot(workdir)
    run = read_run(workdir)
    assert snapshot(workdir) == before

    assert run.name == "run"
    assert run.config == CONFIG
    assert (run.last_step, run.planned_steps, run.unit) == (40, 40, "tokens")
    assert run.metrics["train/loss"].steps.tolist() == [10, 20, 30, 40]
    assert repr(run.metrics["train/loss"].values.tolist()) == "[4.0, 2.0, nan, 1.0]"
    assert [(s.step, s.eval_set, s.text) for s in run.samples] == [
        (20, "dates", "first"),
        (40, "dates", "second"),
    ]
    assert run.checkpoints == (20, 40)
    assert [each["step"] for each in run.evaluations] == [40]
    assert [each["eval_set"] for each in run.details] == ["held_out"]
    assert run.parameters == {"trainable": 90, "total": 100}
    assert run.problems == ()
    assert run.status == "finished"


def test_the_directory_of_checkpoints_is_the_checkpoint_managers():
    assert recorded_run.CHECKPOINTS == checkpoint_manager.DIRECTORY


def test_progress_follows_the_steps_that_survived(tmp_path):
    """Step 30 was reached twice: the second time counts, resumed from step 20 after the kill."""
    run = read_run(write_run(tmp_path))
    steps, seconds = run.progress("seconds")
    assert (steps.tolist(), seconds.tolist()) == ([0, 10, 20, 30, 40], [0, 8, 12, 20, 32])
    assert run.progress("tokens")[1].tolist() == [0, 1000, 2000, 3000, 4000]
    # Half of the way from step 20 to step 30: (12 + 20) / 2.
    assert run.at_steps("seconds", np.array([25, 40])).tolist() == [16, 32]
    assert run.total("seconds") == 34  # with the evaluation after the last step
    assert run.total("tokens") == 4000
    assert run.at_steps("images", np.array([10])) is None
    assert run.total("images") is None


@pytest.mark.parametrize(("mode", "best"), [("max", (30, 5.0)), ("min", (20, -1.0))])
def test_the_best_value_is_the_first_finite_one_in_its_mode(mode, best):
    values = [math.inf, -1.0, 5.0, math.nan, 5.0, -1.0, -math.inf]
    series = Series(np.arange(10, 80, 10), np.array(values))
    assert series.best(mode) == best


def test_a_series_without_numbers_has_no_best():
    assert Series(np.array([1, 2]), np.array([math.nan, math.inf])).best("max") is None


def test_the_main_metric_is_the_configs_with_its_mode(tmp_path):
    assert read_run(write_run(tmp_path / "a")).main_metric == ("eval/dates/exact_match", "max")
    checkpoint = {"best_metric": "eval/dates/loss", "best_mode": "min"}
    run = read_run(write_run(tmp_path / "b", config={**CONFIG, "checkpoint": checkpoint}))
    assert run.main_metric == ("eval/dates/loss", "min")
    assert run.metrics["eval/dates/loss"].best("min") == (20, 3.0)


def test_a_run_that_is_going_on_has_a_cut_last_line_and_no_checkpoint(tmp_path):
    workdir = write_run(tmp_path, metrics=METRICS[:2], events=EVENTS[:3], model=None)
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "train/l')
    with (workdir / "events.jsonl").open("a") as file:
        file.write('{"event": "pro')
    run = read_run(workdir)
    assert run.metrics["train/loss"].steps.tolist() == [10, 20]
    assert run.total("seconds") == 12
    assert run.checkpoints == ()
    assert run.problems == ()  # a line that is being written is no damage
    assert "running" in run.status


def test_damaged_files_are_left_out_and_named(tmp_path):
    workdir = write_run(tmp_path)
    (workdir / "config.json").write_text("{")
    (workdir / "model.json").write_bytes(b"\xff\xfe\x00")
    (workdir / "environment.json").write_text("[1]")
    lines = [
        '{"step": "ten", "a": 1}', "not json", "[1, 2]", '{"a": 1}', '{"step": 5, "a": "x"}',
        '{"step": 5, "b": [1], "c": null, "d": true}', '{"step": 6, "a": 2}',
    ]  # fmt: skip
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (workdir / "samples").write_text("a file where a directory should be")
    (workdir / "evaluations").mkdir()
    (workdir / "evaluations" / "00000001_x.json").write_text('{"step": "one"}')
    run = read_run(workdir)
    assert {name: each.values.tolist() for name, each in run.metrics.items()} == {"a": [2.0]}
    named = " ".join(run.problems)
    for name in ("config.json", "model.json", "environment.json", "metrics.jsonl: 2 damaged"):
        assert name in named
    assert (run.config, run.samples, run.details) == ({}, (), ())
    assert run.planned_steps is None


def test_malformed_events_are_ignored(tmp_path):
    odd = [
        {"event": "start"}, {"event": 3, "step": 1}, {"event": "progress", "step": 2},
        {"event": "progress", "step": 3, "seconds": "soon"}, {"event": "rollback", "step": 3},
        {"event": "party", "step": 4, "parameters": 7},
    ]  # fmt: skip
    run = read_run(write_run(tmp_path, events=odd))
    assert [event["step"] for event in run.events] == [2, 3, 3, 4]
    assert run.total("seconds") is None
    assert run.parameters == {}


def test_an_old_run_without_events_is_read(tmp_path):
    run = read_run(write_run(tmp_path, events=None))
    assert (run.status, run.total("seconds"), run.last_step) == ("", None, 40)


def test_the_newest_details_of_each_set_are_shown(tmp_path):
    newer = {**CLASSES, "step": 400}
    other = {**CLASSES, "eval_set": "other", "step": 7}
    run = read_run(write_run(tmp_path, details=[newer, CLASSES, other]))
    assert {each["eval_set"]: each["step"] for each in run.details} == {"held_out": 400, "other": 7}


def test_long_samples_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_run, "MOST_SAMPLES", 2)
    monkeypatch.setattr(recorded_run, "MOST_CHARACTERS", 3)
    samples = {f"{step:08d}_dates.txt": f"{step} text" for step in (10, 20, 30)}
    run = read_run(write_run(tmp_path, samples=samples))
    assert [(each.step, each.text) for each in run.samples] == [(20, "20 "), (30, "30 ")]


@pytest.mark.parametrize("has_directory", [False, True])
def test_a_directory_without_a_run_is_refused(tmp_path, has_directory):
    workdir = tmp_path / "nothing"
    if has_directory:
        workdir.mkdir()
        (workdir / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="nothing"):
        read_run(workdir)


def test_a_remote_directory_is_refused_as_elsewhere():
    with pytest.raises(ConfigError, match="hdfs://host/run"):
        read_run("hdfs://host/run")


def test_a_deep_json_does_not_end_the_report(tmp_path):
    workdir = write_run(tmp_path)
    (workdir / "model.json").write_text("[" * 200_000)
    (workdir / "evaluations.jsonl").write_text(
        "[" * 200_000 + "\n" + json.dumps({"step": 1}) + "\n"
    )
    run = read_run(workdir)
    assert run.model == {}
    assert run.evaluations == ({"step": 1},)
