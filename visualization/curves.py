"""Curves of runs: axes, smoothing, groups, and the marks of a run's troubles."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from checkpointing.recorded_run import RunRecord, Series

MOST_POINTS = 4_000  # of a curve in a page; of more, evenly spaced ones are drawn
MOST_MARKS = 300  # of a run

GROUPS = {
    "eval": "Evaluation",
    "train": "Training",
    "optim": "Optimizer",
    "perf": "Speed",
    "failure": "Failures",
    "data": "Data",
}
# Metrics that are drawn as they are: scores are few, and a schedule has no noise.
UNSMOOTHED = ("eval/", "optim/learning_rate")


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something that happened to a run at a step."""

    step: int
    kind: str  # "restart", "skipped", "rollback", "evaluation_failed", "end" or "not_finite"
    text: str


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """The exponential moving average of values, corrected for its start at 0.

    s(n) = weight * s(n - 1) + (1 - weight) * value(n), divided by 1 - weight ** n. NaN and infinite
    values stay as they are and do not enter the average. Weight 0 changes nothing.
    """
    result, average, count = np.array(values, float), 0.0, 0
    for index, value in enumerate(result):
        if math.isfinite(value):
            count += 1
            average = weight * average + (1 - weight) * value
            result[index] = average / (1 - weight**count)
    return result


def thinned(series: Series, most: int = MOST_POINTS) -> Series:
    """The series with at most so many points, evenly spaced, the first and last among them."""
    if len(series.steps) <= most:
        return series
    indices = np.unique(np.linspace(0, len(series.steps) - 1, most).round().astype(int))
    return Series(series.steps[indices], series.values[indices])


def group_of(metric: str) -> str:
    """The heading under which a metric is drawn."""
    first, _, rest = metric.partition("/")
    if first == "eval" and "/" in rest:
        return f"Evaluation: {rest.rpartition('/')[0]}"
    return GROUPS.get(first, "Other")


def grouped(runs: Iterable[RunRecord]) -> dict[str, list[str]]:
    """The metrics of all runs by group: evaluation first, then in the order of GROUPS."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    order = [*GROUPS.values(), "Other"]
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: not name.endswith("loss")):  # losses first
        groups.setdefault(group_of(name), []).append(name)
    return dict(sorted(groups.items(), key=lambda item: order.index(item[0].partition(":")[0])))


def marks(run: RunRecord) -> list[Mark]:
    """Restarts, skipped and rolled-back steps, failed evaluations, and ends by an error."""
    found, started = [], False
    for event in run.events:
        step, kind = event["step"], event["event"]
        match kind:
            case "start" if started and step != run.planned_steps:
                found.append(Mark(step, "restart", f"started again from step {step}"))
            case "skipped":
                found.append(Mark(step, kind, f"step {step} skipped, loss {event.get('loss')}"))
            case "rollback":
                text = f"rolled back from step {step} to {event.get('to')}"
                found.append(Mark(step, kind, text))
            case "evaluation_failed":
                text = f"evaluation at step {step} failed: {event.get('reason', '')}"
                found.append(Mark(step, kind, text))
            case "end" if event.get("reason"):
                found.append(Mark(step, kind, f"ended at step {step}: {event['reason']}"))
        started = started or kind == "start"
    if series := run.metrics.get("train/loss"):
        for step in series.steps[~np.isfinite(series.values)].tolist():
            found.append(Mark(step, "not_finite", f"the loss at step {step} is not finite"))
    return sorted(found, key=lambda mark: mark.step)[:MOST_MARKS]


def curve_data(run: RunRecord) -> dict[str, Any]:
    """A run's curves for the page: metrics as indices into one list of steps, with its axes."""
    series = {name: thinned(each) for name, each in run.metrics.items()}
    found = marks(run)
    steps = sorted({step for each in series.values() for step in each.steps.tolist()})
    steps = np.array(sorted({*steps, *(mark.step for mark in found)}), int)
    index = {step: place for place, step in enumerate(steps.tolist())}
    axes: dict[str, Any] = {"steps": steps.tolist()}
    for axis, key in (("tokens", run.unit), ("seconds", "seconds")):
        at_steps = run.at_steps(key, steps) if len(steps) else None
        axes[axis] = None if at_steps is None else _short(at_steps)
    return {
        "axes": axes,
        "metrics": {
            name: {"at": [index[s] for s in each.steps.tolist()], "values": _short(each.values)}
            for name, each in series.items()
        },
        "marks": [{"at": index[m.step], "kind": m.kind, "text": m.text} for m in found],
    }


def _short(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Seven significant digits, which a curve does not show anyhow; None where not finite."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in np.asarray(values).tolist()]


def axis_title(axis: str, unit: str = "tokens") -> str:
    """The title of the horizontal axis of a curve."""
    return {"steps": "step", "tokens": unit, "seconds": "wall time"}[axis]
