"""Runs one config in many variants and seeds: python sweep.py --config=configs/x.py --grid=...

    python sweep.py --config=configs/x.py --grid='model.position=rope,alibi;seed=0..4'
    python sweep.py --study=studies/y.py
    python sweep.py --config=configs/x.py --search='optimizer.learning_rate=log(1e-4,1e-2)'
    python sweep.py --run=runs/x --probes=attention_entropy

Each cell is a run of train.py in WORKDIR/cells. The same command run again continues: finished
cells are skipped, others resume. It writes a table with means over seeds and tests of differences,
as text, CSV and JSON, figures, and a page. --config.a.b=v changes the config of all cells. Probes
are numbers of a finished run that training does not log; --run computes them for any run.
"""

import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from checkpointing import run_directory
from experiment import command_line
from experiment.help_text import ROOT
from experiment.schema import ConfigError
from sweeps import job_devices, sweep_output, sweep_record
from sweeps.cell_results import read_result
from sweeps.planned_sweep import PlannedSweep, plan_sweep
from sweeps.probe_computation import compute_probes
from sweeps.probe_results import probe_values
from sweeps.result_files import without_nan
from sweeps.runner import SweepEnd
from sweeps.search_job import SearchSpec, run_search
from sweeps.study import Study, load_study, resolved_config, study_of_grid, with_flags
from sweeps.sweep_job import SweepJob
from sweeps.sweep_table import aligned
from training.exits import StoppedError
from training.stop_signals import AT_ONCE

DEFAULT_CONFIG = "configs/dates.py"
FAILED = 1  # the exit code if a cell failed
TRAINER = (sys.executable, str(ROOT / "train.py"))
PROBER = (sys.executable, str(ROOT / "sweep.py"))  # with --run
TASK = "SLURM_ARRAY_TASK_ID"


def note(line: str) -> None:
    """Prints a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def default_config() -> str:
    """The config of --study, so that --config.a.b=v changes that one."""
    study = command_line.value_of("study", sys.argv)
    if not study:
        return DEFAULT_CONFIG
    if given := command_line.value_of("config", sys.argv):
        raise ConfigError(f"--study names its config; leave --config={given} out")
    return resolved_config(load_study(study).config)


def asked_study() -> Study:
    """The study of --study, or that of --config and --grid."""
    metrics, probes = names_of(METRIC), names_of(PROBES)
    match = "" if MATCH.value == "none" else MATCH.value
    options = dict(metrics=metrics, probes=probes, baseline=BASELINE.value, match=match)
    if STUDY.value and (GRID.value or SEARCH.value):
        raise ConfigError("--study has its own variants; leave --grid and --search out")
    if STUDY.value:
        return with_flags(load_study(STUDY.value), **options)
    if SEARCH.value and GRID.value:
        raise ConfigError("--grid and --search are two ways to make cells; leave one out")
    config = config_flags.get_config_filename(flags.FLAGS["config"])
    if SEARCH.value:
        if BASELINE.value or match:
            raise ConfigError("--baseline and --match compare variants; a search has none")
        if probes:
            raise ConfigError("--probes are for --grid and --study; a search compares by a metric")
        return search_spec().study(config, metrics)
    if not GRID.value:
        raise ConfigError(
            "nothing to run: give --grid='model.position=rope,alibi;seed=0..4', --study=FILE or "
            "--search='optimizer.learning_rate=log(1e-4,1e-2)'"
        )
    return study_of_grid(config, GRID.value, **options)


def names_of(flag: flags.FlagHolder) -> list[str]:
    """The names in a comma-separated flag."""
    return [each.strip() for each in flag.value if each.strip()]


def search_spec() -> SearchSpec:
    """The flags of --search."""
    return SearchSpec(
        ranges=SEARCH.value,
        trials=TRIALS.value,
        seed=SEARCH_SEED.value,
        halving=HALVING.value,
        budget_steps=BUDGET_STEPS.value,
        budget_minutes=BUDGET_MINUTES.value,
    )


def first_cell(count: int) -> int:
    """The cell to begin with: other tasks begin elsewhere, and locks decide who runs what."""
    text = TASK_OF.value
    if not text and TASK in os.environ:
        first = int(os.environ.get("SLURM_ARRAY_TASK_MIN", "0"))
        tasks = int(os.environ.get("SLURM_ARRAY_TASK_COUNT", "1"))
        text = f"{int(os.environ[TASK]) - first}/{tasks}"
    if not text:
        return 0
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigError(f"--task={text} must be I/N with I from 0 to N-1, such as 0/4")
    return count * int(found[1]) // int(found[2])


def list_cells(planned: PlannedSweep, sweep: Path) -> str:
    """A line for each cell: its size, and whether it is done."""
    rows = [("cell", "parameters", "FLOPs", "steps", "state")]
    for cell in planned.cells:
        variant = planned.record.variants[cell.variant]
        probes = planned.probes()[cell.name]
        metrics = planned.record.metrics
        result = read_result(cell.workdir(sweep), metrics, variant.steps, probes=probes)
        state = f"at {result.step}" if result.is_begun else "new"
        if result.is_trained:
            state = "done" if result.is_done else "probes missing"
        flops = f"{planned.record.flops(cell.variant):.3g}"
        rows.append((cell.name, f"{variant.parameters:,}", flops, str(variant.steps), state))
    return aligned(rows)


def end_with(sweep: Path, end: SweepEnd, cells: int, text: str) -> None:
    """Prints the table and what is missing from it; exits if the sweep is not complete."""
    print(text)
    files = ("table.csv", "table.json", sweep_output.PAGE)
    note(f"written: {', '.join(str(sweep / name) for name in files if (sweep / name).exists())}")
    for name, reason in end.failed.items():
        note(f"failed: {name}: {reason}")
    if end.elsewhere:
        note(f"running elsewhere: {', '.join(end.elsewhere)}")
    if end.was_stopped:
        note("stopped; run the same command again to continue")
        sys.exit(StoppedError.exit_code)
    if end.failed:
        note(f"{len(end.failed)} of {cells} cells failed; the same command tries them again")
        sys.exit(FAILED)


def run_variants(job: SweepJob, study: Study, overrides: Mapping[str, Any]) -> None:
    """Plans and runs the variants of a study."""
    if LIST.value:
        print(list_cells(plan_sweep(job.sweep, study, overrides, note=note), job.sweep))
        return
    run_directory.prepare(job.sweep)
    planned = join_sweep(job, study, overrides)
    end = SweepEnd({}, [], False)
    if not SHOW.value:
        table = functools.partial(sweep_output.progress_text, job.sweep, planned.record)
        probes = planned.probes()
        metrics = planned.record.metrics
        end = job.run(planned.cells, planned.steps(), metrics, table, probes=probes)
    text = sweep_output.write_all(job.sweep, sweep_record.read(job.sweep), note)
    end_with(job.sweep, end, len(planned.cells), text)


def join_sweep(job: SweepJob, study: Study, overrides: Mapping[str, Any]) -> PlannedSweep:
    """Plans the variants and records them.

    If sizes are measured, another process may have recorded other ones before this one: then those
    are used.
    """
    options = dict(measure=lambda cell: job.time(cell).step_seconds, note=note)
    planned = plan_sweep(job.sweep, study, overrides, **options)
    joined = sweep_record.join(job.sweep, planned.record)
    if any(joined.variants[name] != each for name, each in planned.record.variants.items()):
        planned = plan_sweep(job.sweep, study, overrides, **options)
    return dataclasses.replace(planned, record=joined)


def main() -> None:
    try:
        plan_and_run()
    except KeyboardInterrupt:  # while planning; nothing runs yet
        sys.exit(AT_ONCE)


def probe_run() -> None:
    """Computes --probes of --run and prints their values."""
    if STUDY.value or GRID.value or SEARCH.value:
        raise ConfigError("--run is a finished run; leave --study, --grid and --search out")
    if not (probes := names_of(PROBES)):
        raise ConfigError("--run needs --probes, such as --probes=attention_entropy")
    compute_probes(Path(RUN.value), probes)
    found = probe_values(Path(RUN.value))
    asked = {name: value for name, value in found.items() if name.split("/")[1] in probes}
    print(json.dumps(without_nan(asked), indent=2))


def plan_and_run() -> None:
    """Does what the flags ask for."""
    if RUN.value:
        probe_run()
        return
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    study = asked_study()
    devices = job_devices.split_devices(JOBS.value, os.environ, job_devices.own_cpus())
    sweep = Path(WORKDIR.value or Path("runs", "sweeps", study.name))
    jax.config.update("jax_platforms", "cpu")  # accelerators are for the cells
    job = SweepJob(sweep, TRAINER, tuple(devices), first_cell, PROBER)
    if not SEARCH.value:
        run_variants(job, study, overrides)
        return
    if SHOW.value or LIST.value:
        raise ConfigError("--list and --show are for --grid and --study; a search writes table.txt")
    run_directory.prepare(sweep)
    end, text, planned = run_search(job, search_spec(), study, overrides, note)
    end_with(sweep, end, len(planned.cells), text)


if __name__ == "__main__":
    CONFIG = command_line.config_flag(default_config)
    STUDY = flags.DEFINE_string("study", "", "A file with get_study(), in place of --grid.")
    GRID = flags.DEFINE_string("grid", "", "Values of keys, such as 'model.heads=2,4;seed=0..4'.")
    WORKDIR = flags.DEFINE_string("workdir", "", "The sweep; default: runs/sweeps/<name>.")
    JOBS = flags.DEFINE_integer("jobs", 1, "Cells that run at the same time on this machine.")
    TASK_OF = flags.DEFINE_string(
        "task", "", "I/N: this is process I of N; default: as SLURM says in an array."
    )
    METRIC = flags.DEFINE_list("metric", [], "Metrics; default: the main score of the config.")
    PROBES = flags.DEFINE_list("probes", [], "Probes of the cells, or of --run.")
    RUN = flags.DEFINE_string("run", "", "A finished run: compute --probes of it.")
    BASELINE = flags.DEFINE_string(
        "baseline", "", "The variant to compare with; default: the first."
    )
    MATCH = flags.DEFINE_enum(
        "match",
        "none",
        ["none", "parameters", "flops", "time"],
        "Resize variants to the baseline's parameters, FLOPs or time of a step.",
    )
    SEARCH = flags.DEFINE_string(
        "search", "", "Ranges of keys: log(a,b), uniform(a,b), int(a,b) or values."
    )
    TRIALS = flags.DEFINE_integer("trials", 16, "Trials of --search.")
    SEARCH_SEED = flags.DEFINE_integer("search_seed", 0, "Seed of the trials.", lower_bound=0)
    HALVING = flags.DEFINE_integer("halving", 0, "N: the best 1/N of trials go on; 0: all do.")
    BUDGET_STEPS = flags.DEFINE_integer("budget_steps", 0, "Training steps of all trials together.")
    BUDGET_MINUTES = flags.DEFINE_float("budget_minutes", 0, "Minutes of all trials together.")
    LIST = flags.DEFINE_bool("list", False, "List the cells and start nothing.")
    SHOW = flags.DEFINE_bool("show", False, "Write the table of what is done and start nothing.")
    command_line.launch(main)
