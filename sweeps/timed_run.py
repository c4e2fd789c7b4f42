"""Measures how long a training step of a cell takes, by a short run of train.py."""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from checkpointing.recorded_run import read_run
from experiment.schema import ConfigError
from sweeps.cells import Cell
from sweeps.job_devices import JobDevices, environment_of, pin

TIMING = "timing"  # a directory of the sweep
STEPS, REPORTS_EVERY = 40, 4  # ten reports, of which the median counts


class StepTime(NamedTuple):
    """What a short run took."""

    step_seconds: float  # median
    start_seconds: float  # all but the steps: imports, data, compilation, one evaluation


def timed_cell(cell: Cell) -> Cell:
    """A short run that computes the same steps as the cell, with little else."""
    experiment = cell.experiment()
    return cell.changed(
        steps=STEPS,
        # Otherwise the schedule would have to fit into the few steps.
        optimizer__decay_steps=experiment.optimizer.decay_end(experiment.run.steps),
        log_every=REPORTS_EVERY,
        time_limit=0.0,
        profile_steps=(0, 0),
        wandb_project="",
        eval__every=0,
        eval__batches=1,
        eval__samples=0,
        eval__patience=0,
        checkpoint__every=0,
        checkpoint__best_metric="",
    )


def measure(sweep: Path, trainer: Sequence[str], devices: JobDevices, cell: Cell) -> StepTime:
    """Runs a few steps of a cell and returns their time. Nothing else should run then."""
    place = sweep / TIMING / cell.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    short = timed_cell(cell)
    begun = time.monotonic()
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [*trainer, *short.arguments(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment_of(devices, os.environ),
        )
        pin(process.pid, devices)
        code = process.wait()
    seconds = time.monotonic() - begun
    if code:
        lines = (place / "log").read_text(errors="replace").splitlines() or ["no output"]
        raise ConfigError(f"{cell.name} cannot be timed (exit code {code}): {lines[-1]}")
    series = read_run(short.workdir(place)).metrics["perf/steps_per_second"]
    step = 1 / statistics.median(series.values.tolist())
    shutil.rmtree(place)
    return StepTime(step, max(0.0, seconds - STEPS * step))
