"""The runner with a trainer that does not train: claims, failures, signals, cores."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from checkpointing import run_directory
from sweeps.cell_results import read_result
from sweeps.cells import make_cells
from sweeps.job_devices import JobDevices
from sweeps.progress_table import ProgressTable
from sweeps.runner import Runner
from sweeps.study import Study
from sweeps.sweep_job import SweepJob
from tests.scripts import ROOT
from tests.sweeps.fake_trainer import METRIC

TRAINER = (sys.executable, "-m", "tests.sweeps.fake_trainer")
STUDY = Study(
    name="s",
    config="configs/digits.py",
    variants={
        "good": {"optimizer.learning_rate": 1e-3},
        "bad": {"optimizer.learning_rate": 2.0},
        "fair": {"optimizer.learning_rate": 1e-2},
    },
    overrides={"steps": 200},
)
CELLS = make_cells(STUDY, {})
ALL = (JobDevices(),)


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def result(sweep, cell):
    return read_result(cell.workdir(sweep), [METRIC], 200)


def make_runner(sweep, stream, devices=ALL):
    sweep.mkdir(exist_ok=True)
    progress = ProgressTable(
        sweep,
        {cell.name: 200 for cell in CELLS},
        lambda: "",
        lambda cell: f"{result(sweep, cell).values[METRIC]:.3f}",
        stream,
    )

    def command(cell):
        return [*TRAINER, *cell.arguments(sweep)]

    return Runner(sweep, command, devices, lambda cell: result(sweep, cell).is_done, progress)


def starts(sweep):
    path = sweep / "starts.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_failed_cell_does_not_stop_the_others_and_done_cells_are_skipped(tmp_path, capsys):
    with make_runner(tmp_path, sys.stderr) as runner:
        end = runner.run(CELLS)
    assert end.failed == {
        "bad-seed0": "exit code 65: the loss is nan; lower optimizer.learning_rate"
    }
    assert not end.was_stopped and not end.elsewhere
    assert result(tmp_path, CELLS[0]).values == {METRIC: pytest.approx(1 - 1 / 200)}
    assert result(tmp_path, CELLS[2]).values == {METRIC: pytest.approx(-1 / 200)}
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "good-seed0: 0.995 (1 of 3)"
    assert lines[1].startswith("bad-seed0: failed: exit code 65: the loss is nan")
    assert lines[2] == "fair-seed0: -0.005 (2 of 3)"
    with make_runner(tmp_path, sys.stderr) as runner:
        runner.run(CELLS)
    assert [name for name, *_ in starts(tmp_path)] == [
        "good-seed0", "bad-seed0", "fair-seed0", "bad-seed0",
    ]  # fmt: skip


PROBER = """
import pathlib, sys
given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
run = pathlib.Path(given["run"])
with (run.parent.parent / "starts.txt").open("a") as file:
    print(run.name, "probes", given["probes"], file=file)
if "fair" in run.name:
    sys.exit("no device")
from sweeps.probe_results import newest_checkpoint, write_values
for name in given["probes"].split(","):
    write_values(run, name, newest_checkpoint(run), {"batch_1": 2.5})
"""


def test_probes_follow_training_and_one_that_fails_stops_no_other(tmp_path, capsys):
    """Cells that have trained get their probes only; done ones get nothing."""
    job = SweepJob(tmp_path, TRAINER, ALL, lambda cells: 0, (sys.executable, "-c", PROBER))
    metrics = [METRIC, "probe/latency/batch_1"]
    fair, good, steps = CELLS[2], CELLS[0], {cell.name: 200 for cell in CELLS}
    assert not job.run([good], {good.name: 200}, [METRIC], str).failed
    probes = dict.fromkeys(steps, ("latency", "head_similarity"))
    steps.pop("bad-seed0")
    end = job.run([fair, good], steps, metrics, str, probes=probes)
    assert end.failed == {"fair-seed0": "exit code 1: no device"}
    assert [each[:2] for each in starts(tmp_path)] == [
        ["good-seed0", "200"], ["fair-seed0", "200"],
        ["fair-seed0", "probes"], ["good-seed0", "probes"],
    ]  # fmt: skip
    assert starts(tmp_path)[-1][2] == "latency,head_similarity"
    said = capsys.readouterr().err
    assert "good-seed0: eval/held_out/accuracy 0.995, probe/latency/batch_1 2.5, 200 s" in said
    assert "fair-seed0: failed: exit code 1: no device" in said
    done = read_result(good.workdir(tmp_path), metrics, 200, probes=probes["good-seed0"])
    assert done.is_done and done.values["probe/latency/batch_1"] == 2.5
    failed = read_result(fair.workdir(tmp_path), metrics, 200, probes=probes["fair-seed0"])
    assert failed.is_trained and not failed.is_done and not failed.values
    # Nothing is left to do; a variant that no probe fits is done without their metrics.
    some = {**probes, "fair-seed0": ()}
    assert not job.run([fair, good], steps, metrics, str, probes=some).failed
    assert len(starts(tmp_path)) == 4


def test_jobs_have_their_own_cores_and_the_first_cell_is_chosen(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    devices = [JobDevices(frozenset(cpus[:1])), JobDevices(frozenset(cpus[-1:]))]
    (tmp_path / "hold").touch()
    found = {}

    def release():
        wait_for(lambda: len(starts(tmp_path)) == 2)
        found["begun"] = sorted(name for name, *_ in starts(tmp_path))
        (tmp_path / "hold").unlink()

    thread = threading.Thread(target=release)
    thread.start()
    with make_runner(tmp_path, sys.stderr, devices) as runner:
        runner.run(CELLS, first=1)
    thread.join()
    assert found["begun"] == ["bad-seed0", "fair-seed0"]  # both at once, from number 1 on
    cores = {cores for _, _, cores in starts(tmp_path)}
    assert cores == {f"cores={cpus[0]}", f"cores={cpus[-1]}"}


def test_a_cell_of_another_process_is_left_to_it(tmp_path):
    claim = tmp_path / "claims" / "good-seed0"
    claim.mkdir(parents=True)
    by_hand = CELLS[2].workdir(tmp_path)  # a train.py that somebody started
    by_hand.mkdir(parents=True)
    runner = make_runner(tmp_path, sys.stderr)
    with run_directory.lock(claim), run_directory.lock(by_hand), runner:
        end = runner.run([CELLS[0], CELLS[2]])
    assert end.elsewhere == ["good-seed0", "fair-seed0"]
    assert not end.failed and not starts(tmp_path)


def test_two_runners_share_the_cells(tmp_path):
    """Two processes with the same command: every cell runs exactly once."""
    code = (
        "import sys, pathlib; from tests.sweeps import test_runner as t\n"
        "sweep = pathlib.Path(sys.argv[1])\n"
        "with t.make_runner(sweep, sys.stderr) as runner:\n"
        "    end = runner.run([t.CELLS[0], t.CELLS[2]], waits=True)\n"
        "assert not end.failed and not end.elsewhere, end\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert sorted(name for name, *_ in starts(tmp_path)) == ["fair-seed0", "good-seed0"]


def test_a_signal_lets_the_cells_save_and_a_rerun_goes_on(tmp_path, capsys):
    (tmp_path / "hold").touch()

    def interrupt():
        wait_for(lambda: starts(tmp_path))
        time.sleep(0.3)  # the trainer has set its handler before it wrote the line
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with make_runner(tmp_path, sys.stderr) as runner:
        end = runner.run(CELLS)
    thread.join()
    assert end.was_stopped and not end.failed
    assert [name for name, *_ in starts(tmp_path)] == ["good-seed0"]  # no other was begun
    assert result(tmp_path, CELLS[0]).status == "ended by StoppedError: asked"
    said = capsys.readouterr().err
    assert "SIGINT: the running cells stop after saving" in said and "good-seed0: stopped" in said
    (tmp_path / "hold").unlink()
    with make_runner(tmp_path, sys.stderr) as runner:
        end = runner.run(CELLS[:1])
    assert not end.was_stopped and result(tmp_path, CELLS[0]).is_done
