"""sweep.py as a command: a real sweep that is interrupted, and bad input."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from checkpointing.recorded_run import read_run
from tests import scripts
from tests.runs import saved
from tests.scripts import ROOT

TINY = (
    "--config.steps=4", "--config.model.width=16", "--config.model.heads=2",
    "--config.model.feed_forward=32", "--config.model.encoder_layers=1", "--config.model.unroll=1",
    "--config.optimizer.name=adamw", "--config.optimizer.warmup_steps=1",
    "--config.data.batch_size=8", "--config.log_every=1", "--config.eval.every=2",
    "--config.eval.batches=1", "--config.eval.samples=0", "--config.checkpoint.every=2",
    "--config.checkpoint.keep=9",
)  # fmt: skip
GRID = ("--config=configs/digits.py", "--grid=model.position=learned,none")


def sweep(workdir, *arguments):
    return scripts.run("sweep.py", *GRID, f"--workdir={workdir}", *TINY, *arguments)


def tables(workdir):
    """table.csv and table.json as they were written, but for the times."""
    lines = list(csv.DictReader(io.StringIO((workdir / "table.csv").read_text())))
    content = json.loads((workdir / "table.json").read_text())
    for row in (*lines, *content["variants"]):
        assert row.pop("seconds")
    return json.dumps([lines, content])


def forget_after_step_2(workdir):
    """Leaves what a run has that was killed before step 4 was saved."""
    shutil.rmtree(workdir / "checkpoints" / "4")
    events = (workdir / "events.jsonl").read_text().splitlines(keepends=True)
    (workdir / "events.jsonl").write_text("".join(events[:-1]))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("sweeps") / "one"
    cpus = len(os.sched_getaffinity(0))
    ended = sweep(workdir, f"--jobs={min(2, cpus)}")
    assert ended.code == 0, ended.err
    return workdir, ended


def test_every_cell_is_a_run_and_the_table_has_its_scores(uninterrupted):
    workdir, ended = uninterrupted
    record = json.loads((workdir / "sweep.json").read_text())
    content = json.loads((workdir / "table.json").read_text())
    for variant, name in (("position=learned", "learned"), ("position=none", "none")):
        run = read_run(workdir / "cells" / f"position={name}-seed0")
        assert run.status == "finished" and run.config["model"]["position"] == name
        assert record["variants"][variant]["parameters"] == run.parameters["total"]
        (row,) = [each for each in content["variants"] if each["variant"] == variant]
        _, accuracy = run.metrics["eval/held_out/accuracy"].last
        assert row["scores"]["eval/held_out/accuracy"]["mean"] == accuracy
    assert "n=1: no interval" in ended.out
    assert ended.out.strip() == (workdir / "table.txt").read_text().strip()


def test_a_half_finished_sweep_resumes_to_the_same_table(uninterrupted, tmp_path):
    workdir, _ = uninterrupted
    half = tmp_path / "half"
    shutil.copytree(workdir, half)
    forget_after_step_2(half / "cells" / "position=none-seed0")
    shown = sweep(half, "--show")
    assert shown.code == 0 and "0 of 1" in shown.out
    ended = sweep(half)
    assert ended.code == 0, ended.err
    assert "1 of 2 cells are done already" in ended.err
    events = read_run(half / "cells" / "position=none-seed0").events
    assert [e["step"] for e in events if e["event"] == "start"] == [
        0,
        2,
    ]  # it went on, from where it was saved
    done = read_run(half / "cells" / "position=learned-seed0").events
    assert [e["event"] for e in done].count("start") == 1  # skipped
    assert tables(half) == tables(workdir)


def test_a_finished_sweep_starts_nothing_and_refuses_changes(uninterrupted, tmp_path):
    workdir, first = uninterrupted
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    again = sweep(copy)
    assert again.code == 0 and again.out == first.out
    assert "2 of 2 cells are done already" in again.err
    listed = sweep(copy, "--list")
    assert listed.code == 0 and listed.out.count("done") == 2
    refused = sweep(copy, "--config.optimizer.learning_rate=0.5")
    assert refused.code == 2
    assert "holds another sweep (optimizer.learning_rate: none -> 0.5)" in refused.err
    config = copy / "cells" / "position=none-seed0" / "config.json"
    config.write_text(config.read_text().replace('"beta2": 0.999', '"beta2": 0.5'))
    refused = sweep(copy)
    assert refused.code == 2
    assert (
        "position=none-seed0 holds a run with another config (optimizer.beta2: 0.5" in refused.err
    )


def test_the_page_and_the_figures(uninterrupted):
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    workdir, ended = uninterrupted
    assert str(workdir / "sweep.html") in ended.err
    page = (workdir / "sweep.html").read_text()
    assert page.index("difference from position=learned") < page.index('id="summary"')
    assert page.count("<svg") >= 2 and "position=none-seed0" in page
    names = sorted(path.name for path in (workdir / "figures").iterdir())
    assert names == ["eval-held_out-accuracy-bars.svg", "eval-held_out-accuracy-curves.svg"]


@pytest.mark.slow
def test_the_last_rung_of_halving_is_the_run_that_nobody_stopped(tmp_path):
    """The best trial, stopped at a rung and resumed, equals train.py from the start to the bit."""
    workdir = tmp_path / "search"
    search = ("--search=optimizer.learning_rate=log(1e-4,1e-1)", "--trials=2", "--halving=2")
    ended = scripts.run(
        "sweep.py", "--config=configs/digits.py", f"--workdir={workdir}", *search, *TINY
    )
    assert ended.code == 0, ended.err
    content = json.loads((workdir / "table.json").read_text())
    assert sorted(trial["steps"] for trial in content["trials"]) == [2, 4]
    (best,) = [trial for trial in content["trials"] if trial["steps"] == 4]
    rate = f"--config.optimizer.learning_rate={best['overrides']['optimizer.learning_rate']}"
    command = [sys.executable, "train.py", "--config=configs/digits.py", *TINY, rate]
    straight = tmp_path / "straight"
    subprocess.run([*command, f"--workdir={straight}"], cwd=ROOT, check=True, timeout=600)
    resumed = workdir / "cells" / f"{best['trial']}-seed0"
    assert [e["step"] for e in read_run(resumed).events if e["event"] == "start"] == [0, 2]
    ours, theirs = saved(resumed, 4), saved(straight, 4)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], name)


@pytest.mark.slow
def test_a_signal_stops_real_cells_after_saving_and_the_sweep_goes_on(tmp_path):
    arguments = [*GRID, f"--workdir={tmp_path / 's'}", *TINY, "--config.steps=100000"]
    command = [sys.executable, "sweep.py", *arguments]
    cell = tmp_path / "s" / "cells" / "position=learned-seed0"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 300
        while not (cell / "checkpoints" / "10").exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 75, said
    assert "SIGTERM: the running cells stop after saving" in said
    run = read_run(cell)
    assert run.status.startswith("ended by StoppedError") and run.last_step == run.checkpoints[-1]
    assert not (cell.parent / "position=none-seed0").exists()  # the next one was not begun


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to run: give --grid"),
        (
            ["--grid=model.postion=rope"],
            "model.postion is not a config key. Did you mean 'position'",
        ),
        (["--grid=model.heads=2,,4"], "model.heads has an empty value"),
        (["--grid=model.heads=2,2"], "two variants are named heads=2"),
        (["--grid=model.heads=3"], "model.heads=3 does not divide model.width"),
        (["--grid=seed=0", "--metric=eval/held_out/acc"], "Did you mean 'eval/held_out/accuracy'"),
        (["--grid=seed=0", "--baseline=x"], "baseline=x is not a variant"),
        (["--grid=seed=0", "--jobs=0"], "--jobs=0 must be at least 1"),
        (["--grid=seed=0", "--task=4/4"], "--task=4/4 must be I/N"),
        (["--grid=seed=0", "--search=model.heads=1,2"], "leave one out"),
        (["--study=studies/positions_digits.py"], "leave --config=configs/digits.py out"),
        (["--search=model.heads=1,2", "--match=flops"], "a search has none"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, arguments, reason):
    workdir = tmp_path / "s"
    arguments = ["--config=configs/digits.py", f"--workdir={workdir}", *arguments]
    ended = scripts.run("sweep.py", *arguments)
    assert ended.code == 2
    assert reason in ended.err and len(ended.err.splitlines()) == 1
    assert not (workdir / "cells").exists()


def test_flags_of_a_study_change_its_config(tmp_path):
    study = "--study=studies/positions_digits.py"
    ended = scripts.run("sweep.py", study, f"--workdir={tmp_path}/s", "--list", "--config.steps=77")
    assert ended.code == 0, ended.err
    assert ended.out.count(" 77 ") == len(ended.out.splitlines()) - 2
    assert not (tmp_path / "s").exists()
    ended = scripts.run("sweep.py", study, f"--workdir={tmp_path}/s", "--config.data.bath_size=4")
    assert ended.code == 2 and "Did you mean" in ended.err


def test_an_array_of_slurm_begins_at_different_cells(monkeypatch):
    import runpy

    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "4")
    module = runpy.run_path(str(ROOT / "sweep.py"))
    module["first_cell"].__globals__["TASK_OF"] = type("Flag", (), {"value": ""})
    assert module["first_cell"](12) == 6
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert module["first_cell"](12) == 0
    module["first_cell"].__globals__["TASK_OF"] = type("Flag", (), {"value": "1/3"})
    assert module["first_cell"](12) == 4
