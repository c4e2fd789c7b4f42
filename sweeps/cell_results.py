"""What the run of a cell has reached: whether it is done, its scores, time and parameters."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpointing.recorded_run import RunRecord, read_run
from experiment.schema import ConfigError
from sweeps.metric_patterns import PROBE, expand, is_pattern, matches
from sweeps.probe_results import missing_probes, probe_values

# Speeds are noisy, so the median counts. For all other metrics the last value counts: choosing the
# best value by the reported scores would favour noisy variants.
MEDIANS = ("perf/",)
TRAINING_METRICS = (
    "train/loss", "train/accuracy", "train/total_loss", "optim/learning_rate", "optim/grad_norm",
    "perf/steps_per_second", "perf/tokens_per_second", "perf/images_per_second",
    "perf/examples_per_second",
    "perf/tflops_per_device", "perf/data_wait_fraction", "perf/mfu",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The results of one cell."""

    step: int  # the newest step that is known
    is_trained: bool
    is_done: bool  # trained, with all its probes
    values: Mapping[str, float]  # the metrics that were asked for, of a cell that is done
    seconds: float | None
    parameters: int | None
    status: str  # how the run ended, in words; "" if it has not begun

    @property
    def is_begun(self) -> bool:
        return self.step > 0 or bool(self.status)


NOT_BEGUN = CellResult(0, False, False, {}, None, None, "")


def read_result(
    workdir: Path,
    metrics: Sequence[str],
    steps: int,
    *,
    exact: bool = False,
    probes: Sequence[str] = (),
) -> CellResult:
    """The result of the run in a directory.

    The cell is trained if its run ended as planned (at `steps`, or earlier by a limit of its
    config) and recorded all metrics; for a pattern of scores, at least one that matches. With
    `exact`, it is trained if it has scores at exactly `steps`, even if it went on afterwards. It is
    done if `probes` have results for its checkpoint, too.
    """
    run = recorded(workdir)
    if run is None:
        return NOT_BEGUN
    probed = probe_values(workdir)
    names = expand(metrics, {**run.metrics, **probed})
    logged = values_at(run, names, steps) if exact else last_values(run, names)
    found = {**probed, **logged}
    values = {name: found[name] for name in names if name in found}
    planned = run.planned_steps
    # A run that was asked for more steps since its end is not done.
    has_ended = exact or (run.status == "finished" and planned == steps)
    is_trained = has_ended and all(_is_recorded(metric, values) for metric in metrics)
    is_done = is_trained and not missing_probes(workdir, probes)
    return CellResult(
        step=run.last_step,
        is_trained=is_trained,
        is_done=is_done,
        values=values if is_done else {},
        seconds=run.total("seconds"),
        parameters=run.parameters.get("total"),
        status=run.status,
    )


def _is_recorded(metric: str, values: Mapping[str, float]) -> bool:
    if metric.startswith(PROBE):
        return True  # a variant that the probe does not fit has none
    if is_pattern(metric):
        return bool(matches(metric, values)) or not metric.startswith("eval/")
    return metric in values


def recorded(workdir: Path) -> RunRecord | None:
    """What is recorded of a run; None if it has not begun."""
    try:
        return read_run(workdir)
    except ConfigError:
        return None


def last_values(run: RunRecord, metrics: Sequence[str]) -> dict[str, float]:
    """The value of each metric that summarises the run. Scores of earlier steps do not count."""
    values = {}
    for metric in metrics:
        series = run.metrics.get(metric)
        if series is None:
            continue
        if metric.startswith(MEDIANS):
            values[metric] = statistics.median(series.values.tolist())
        elif not metric.startswith("eval/") or series.last[0] == run.last_step:
            values[metric] = series.last[1]
    return values


def values_at(run: RunRecord, metrics: Sequence[str], step: int) -> dict[str, float]:
    """The value of each metric at a step, where it was recorded."""
    values = {}
    for metric in metrics:
        series = run.metrics.get(metric)
        if series is not None and step in series.steps.tolist():
            values[metric] = float(series.values[series.steps.tolist().index(step)])
    return values
