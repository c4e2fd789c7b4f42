"""Timed runs: what they run, and what is read from them."""

import sys

import pytest

from experiment.schema import ConfigError
from sweeps.cells import make_cells
from sweeps.job_devices import JobDevices
from sweeps.study import Study
from sweeps.timed_run import STEPS, measure, timed_cell

STUDY = Study(name="s", config="configs/digits.py", variants={"a": {}}, overrides={"steps": 900})
(CELL,) = make_cells(STUDY, {})
TRAINER = """
import json, pathlib, sys
given = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
workdir = pathlib.Path(given["workdir"])
workdir.mkdir(parents=True)
speeds = [0.1, 8.0, 4.0, 5.0, 5.0]
lines = [{"step": n, "perf/steps_per_second": speed} for n, speed in enumerate(speeds)]
(workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""


def test_a_timed_run_computes_the_steps_of_the_cell():
    short, full = timed_cell(CELL).experiment(), CELL.experiment()
    assert (short.model, short.data, short.task) == (full.model, full.data, full.task)
    assert short.run.steps == STEPS < full.optimizer.warmup_steps  # and is valid nevertheless
    assert short.optimizer.decay_end(STEPS) == full.optimizer.decay_end(900) == 900
    assert (short.eval.batches, short.eval.every, short.checkpoint.every) == (1, 0, 0)


def test_the_median_counts_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    command = (sys.executable, str(tmp_path / "trainer.py"))
    found = measure(tmp_path / "sweep", command, JobDevices(), CELL)
    assert found.step_seconds == pytest.approx(0.2)
    assert found.start_seconds == 0  # the pretended steps would have taken longer than the run
    assert not list((tmp_path / "sweep" / "timing").iterdir())


def test_a_run_that_fails_says_why(tmp_path):
    (tmp_path / "trainer.py").write_text("raise SystemExit('no memory is left')")
    command = (sys.executable, str(tmp_path / "trainer.py"))
    with pytest.raises(ConfigError, match=r"a-seed0 cannot be timed \(exit code 1\): no memory"):
        measure(tmp_path / "sweep", command, JobDevices(), CELL)
