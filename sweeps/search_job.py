"""Random search and successive halving as a sweep: the trials are its cells."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from sweeps import search_table, sweep_output, sweep_record
from sweeps.cell_results import read_result
from sweeps.cells import Cell, make_cells
from sweeps.grid import file_stem
from sweeps.metric_patterns import only_patterns
from sweeps.planned_sweep import PlannedSweep, plan_sweep
from sweeps.random_search import parse_search, trial_variants
from sweeps.runner import SweepEnd
from sweeps.search_table import TrialRow
from sweeps.study import Study
from sweeps.successive_halving import (
    Rung,
    make_rungs,
    promote,
    starts,
    steps_for_budget,
    total_steps,
)
from sweeps.sweep_job import DIVERGED, SweepJob
from sweeps.timed_run import StepTime
from training.main_metric import mode_of

STEPS, DECAY_STEPS = "steps", "optimizer.decay_steps"


@dataclasses.dataclass(frozen=True)
class SearchSpec:
    """The flags of a search."""

    ranges: str
    trials: int
    seed: int
    halving: int  # 0: random search
    budget_steps: int  # of all trials together; 0: each trial has the config's steps
    budget_minutes: float  # of all trials together

    def study(self, config: str, metrics: Sequence[str]) -> Study:
        """The trials as variants of a study."""
        if self.budget_steps and self.budget_minutes:
            raise ConfigError("--budget_steps and --budget_minutes exclude each other")
        if self.budget_steps < 0 or self.budget_minutes < 0:
            raise ConfigError("--budget_steps and --budget_minutes must be above 0")
        if only_patterns(metrics):
            raise ConfigError(f"--metric={metrics[0]}: a search needs metrics without *")
        ranges = parse_search(self.ranges)
        if STEPS in ranges:
            raise ConfigError("--search: the budget decides about steps; leave steps out")
        variants = trial_variants(ranges, self.trials, self.seed)
        return Study(
            name=f"{file_stem(config)}-search",
            config=config,
            variants=variants,
            overrides={},
            metrics=tuple(metrics),
        )

    def recorded(self) -> dict[str, Any]:
        """What may not change when the search continues.

        More trials may be added unless the number of trials decides about their steps.
        """
        fields = dataclasses.asdict(self)
        if not (self.halving or self.budget_steps or self.budget_minutes):
            del fields["trials"]
        return fields

    def steps(self, config_steps: int, time: Callable[[], StepTime]) -> int:
        """The steps of a trial that reaches the end. `time` measures a step of the first trial."""
        if self.budget_steps:
            return steps_for_budget(self.trials, self.halving, self.budget_steps)
        if not self.budget_minutes:
            return config_steps
        measured = time()
        rungs = make_rungs(self.trials, self.halving, config_steps)
        seconds = 60 * self.budget_minutes - starts(rungs) * measured.start_seconds
        if seconds < measured.step_seconds * self.trials:
            raise ConfigError(
                f"--budget_minutes={self.budget_minutes:g} is used up by {starts(rungs)} starts "
                f"of {measured.start_seconds:.0f} s each; raise it or lower --trials"
            )
        return steps_for_budget(
            self.trials, self.halving, math.floor(seconds / measured.step_seconds)
        )


def run_search(
    job: SweepJob,
    spec: SearchSpec,
    study: Study,
    common: Mapping[str, Any],
    note: Callable[[str], None],
) -> tuple[SweepEnd, str, PlannedSweep]:
    """Runs all rungs of a search; returns its end and its table."""
    if (spec.budget_steps or spec.budget_minutes) and STEPS in common:
        raise ConfigError("the budget decides about steps; leave --config.steps out")
    planned = plan_search(job, spec, study, common, note)
    full = next(iter(planned.experiments.values())).run.steps
    rungs = make_rungs(spec.trials, spec.halving, full)
    note(
        f"{spec.trials} trials, {total_steps(rungs):,} steps in all; "
        + ", then ".join(f"{rung.trials} up to step {rung.steps}" for rung in rungs)
    )
    metric = planned.record.metrics[0]
    remaining = list(planned.cells)
    failed: dict[str, str] = {}
    for place, rung in enumerate(rungs):
        cells = [cell.changed(steps=rung.steps) for cell in remaining]
        end = job.run(
            cells,
            {cell.name: rung.steps for cell in cells},
            planned.record.metrics,
            lambda: search_table.text_table(planned.record, trial_rows(job.sweep, planned, rungs)),
            exact=True,
            waits=place + 1 < len(rungs),
        )
        failed |= {
            name: reason
            for name, reason in end.failed.items()
            if not _diverged(job.sweep, planned, name)
        }
        if end.was_stopped or place + 1 == len(rungs):
            break
        values = {}
        for cell in cells:
            found = read_result(cell.workdir(job.sweep), [metric], rung.steps, exact=True)
            values[cell.name] = found.values.get(metric, math.nan)
        chosen = promote(values, rungs[place + 1].trials, mode_of(metric))
        remaining = [cell for cell in remaining if cell.name in chosen]
        note(
            f"step {rung.steps}: {len(remaining)} of {len(cells)} trials go on: "
            + ", ".join(cell.variant for cell in remaining)
        )
    rows = trial_rows(job.sweep, planned, rungs)
    text = sweep_output.write_search(job.sweep, planned.record, rows, note)
    return SweepEnd(failed, end.elsewhere, end.was_stopped), text, planned


def plan_search(
    job: SweepJob,
    spec: SearchSpec,
    study: Study,
    common: Mapping[str, Any],
    note: Callable[[str], None],
) -> PlannedSweep:
    """Plans the trials with the schedule of their full length."""
    recorded = sweep_record.read(job.sweep)
    first: Cell = make_cells(study, common)[0]
    experiment = first.experiment()
    if recorded is not None and recorded.search == spec.recorded():
        steps = int(recorded.common[STEPS])  # it may have been measured
    else:
        steps = spec.steps(experiment.run.steps, lambda: job.time(first))
    decay = experiment.optimizer.decay_steps or steps
    common = {**common, STEPS: steps, DECAY_STEPS: decay}
    planned = plan_sweep(
        job.sweep, study, common, search=spec.recorded(), note=note, changeable=(STEPS,)
    )
    record = sweep_record.join(job.sweep, planned.record)
    return dataclasses.replace(planned, record=record)


def trial_rows(sweep: Path, planned: PlannedSweep, rungs: Sequence[Rung]) -> list[TrialRow]:
    """What each trial has reached: its value at the last rung that it finished."""
    rows = []
    for cell in planned.cells:
        row = TrialRow(cell.variant, planned.record.variants[cell.variant].overrides, 0, {}, None)
        for rung in rungs:
            found = read_result(cell.workdir(sweep), planned.record.metrics, rung.steps, exact=True)
            if found.status.startswith(DIVERGED):
                row = dataclasses.replace(row, note=f"diverged at step {found.step}")
            if found.is_done:
                row = dataclasses.replace(
                    row, steps=rung.steps, values=found.values, seconds=found.seconds
                )
        rows.append(row)
    return rows


def _diverged(sweep: Path, planned: PlannedSweep, name: str) -> bool:
    cell = next(cell for cell in planned.cells if cell.name == name)
    return read_result(cell.workdir(sweep), [], 0).status.startswith(DIVERGED)
