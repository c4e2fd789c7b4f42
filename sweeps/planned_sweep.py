"""Plans a sweep before anything runs: cells, their configs and sizes, metrics, the record.

All bad input is refused here.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError, did_you_mean
from experiment.sections import Experiment
from sweeps import matching, sweep_record
from sweeps.cell_results import TRAINING_METRICS
from sweeps.cells import Cell, flag_text, make_cells, refuse_other_configs, validate
from sweeps.counted_sizes import SizeCounter, choose_metrics, data_key
from sweeps.metric_patterns import is_measured
from sweeps.probe_checks import applicable_probes, misfits
from sweeps.study import Study
from sweeps.sweep_record import SweepRecord, VariantRecord


@dataclasses.dataclass(frozen=True)
class PlannedSweep:
    """A sweep that can start."""

    record: SweepRecord
    cells: tuple[Cell, ...]  # of this command; the record may have more
    experiments: Mapping[str, Experiment]  # by the names of cells

    def steps(self) -> dict[str, int]:
        """The steps of each cell of this command."""
        return {name: each.run.steps for name, each in self.experiments.items()}

    def probes(self) -> dict[str, tuple[str, ...]]:
        """The probes of each cell of this command."""
        return {cell.name: self.record.probes.get(cell.variant, ()) for cell in self.cells}


def plan_sweep(
    sweep: Path,
    study: Study,
    common: Mapping[str, Any],
    *,
    search: Mapping[str, Any] | None = None,
    measure: Callable[[Cell], float] | None = None,
    note: Callable[[str], None] = print,
    changeable: tuple[str, ...] = (),
) -> PlannedSweep:
    """Validates a study, and what the directory of the sweep already holds.

    `common` are the overrides of the command line. `measure` returns the seconds of a training
    step, for match=time. `changeable` are keys that may differ from what a cell has recorded.
    """
    search = dict(search or {})
    recorded = sweep_record.read(sweep)
    overrides = {
        name: {key: flag_text(value) for key, value in own.items()}
        for name, own in study.variants.items()
    }
    baseline = study.compared_with
    if recorded is not None and not study.baseline:
        baseline = recorded.baseline  # variants that are added compare with the same one
    asked = {
        "config": study.config,
        "common": {k: flag_text(v) for k, v in {**study.overrides, **common}.items()},
        "match": study.match,
        "search": search,
        "baseline": baseline,
        "variants": overrides,
    }
    if recorded is not None:
        sweep_record.refuse_other_sweep(sweep, recorded, asked)
    planned = dict(recorded.variants) if recorded is not None else {}
    new = [name for name in study.variants if name not in planned]
    # Before matching, which needs valid configs.
    cells = make_cells(study, common)
    experiments = validate(cells)
    by_variant = {cell.variant: experiments[cell.name] for cell in cells}
    for line in misfits(study.probes, by_variant):
        note(line)

    counter = SizeCounter()
    metrics, known = _metrics(study, common, recorded, new, counter)
    matches = {name: matching.Match(each.sizes, each.matched) for name, each in planned.items()}
    if study.match and new:
        if baseline not in study.variants:
            raise ConfigError(f"--match needs the baseline {baseline} among the variants; add it")
        matches |= _match(study, baseline, common, new, counter, measure, note)
    sizes = {name: each.sizes for name, each in matches.items()}
    cells = make_cells(study, common, sizes)
    experiments = validate(cells)
    refuse_other_configs(sweep, cells, experiments, changeable)

    for name in new:
        experiment = next(experiments[cell.name] for cell in cells if cell.variant == name)
        counted = counter.sizes(experiment)
        digest = hashlib.sha256(json.dumps(data_key(experiment)).encode()).hexdigest()[:16]
        match = matches.get(name, matching.Match({}, ""))
        planned[name] = VariantRecord(
            overrides=overrides[name],
            steps=experiment.run.steps,
            parameters=counted.parameters,
            step_flops=counted.step_flops,
            data_key=digest,
            sizes=dict(match.sizes),
            matched=match.text,
        )
    record = SweepRecord(
        name=study.name,
        claim=study.claim,
        config=asked["config"],
        common=asked["common"],
        match=study.match,
        baseline=baseline,
        metrics=metrics,
        known_metrics=known,
        plots=tuple(study.plots),
        search=search,
        variants={name: planned[name] for name in {**overrides, **planned}},
        cells={cell.name: (cell.variant, cell.seed) for cell in cells},
        probes={
            variant: applicable_probes(study.probes, experiment)
            for variant, experiment in by_variant.items()
        },
    )
    return PlannedSweep(record, tuple(cells), experiments)


def _metrics(
    study: Study,
    common: Mapping[str, Any],
    recorded: SweepRecord | None,
    new: list[str],
    counter: SizeCounter,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The metrics to show, and all that the cells produce. Data is opened only for new variants."""
    known = recorded.known_metrics if recorded is not None else ()
    metrics = study.metrics or (recorded.metrics if recorded is not None else ())
    if new:
        cells = [cell for cell in make_cells(study, common) if cell.variant in new]
        experiments = {cell.variant: cell.experiment() for cell in cells}
        metrics = choose_metrics(metrics, experiments, counter)
        known = known or tuple(counter.metrics(experiments[new[0]]))
    unknown = [each for each in metrics if not is_measured(each, (*known, *TRAINING_METRICS))]
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is not measured.{did_you_mean(unknown[0], known)} Metrics of this "
            f"config: {', '.join((*known, *TRAINING_METRICS))}"
        )
    return tuple(metrics), known


def _match(
    study: Study,
    compared_with: str,
    common: Mapping[str, Any],
    new: list[str],
    counter: SizeCounter,
    measure: Callable[[Cell], float] | None,
    note: Callable[[str], None],
) -> dict[str, matching.Match]:
    """The sizes of new variants that match the baseline."""
    matching.refuse_own_sizes(study.variants, compared_with)
    cells = {cell.variant: cell for cell in reversed(make_cells(study, common))}
    baseline = cells[compared_with]
    others = [name for name in new if name != compared_with]
    matches: dict[str, matching.Match] = {}
    seconds = 0.0
    if study.match == "time" and others:
        if measure is None:
            raise ConfigError("--match=time needs to run a few steps; it cannot only list cells")
        seconds = measure(baseline)
        note(f"{baseline.variant}: {1e3 * seconds:.1f} ms a step")
    for name in others:
        if study.match == "time":
            matches[name] = matching.match_timed(cells[name], seconds, measure, note)
        else:
            matches[name] = matching.match_counted(cells[name], baseline, study.match, counter)
        note(f"{name}: {matches[name].text}")
    return matches
