"""The sections of a report as HTML. Everything that comes from a run is escaped here."""

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from checkpointing import run_summary
from checkpointing.recorded_run import RunRecord
from visualization import config_diff, curves
from visualization.html_parts import dot, escaped, table

MARK_NAMES = {
    "restart": ("#7d8794", "started again"),
    "skipped": ("#e69f00", "step skipped"),
    "rollback": ("#d55e00", "rolled back"),
    "evaluation_failed": ("#cc79a7", "evaluation failed"),
    "end": ("#b3261e", "ended by an error or a signal"),
    "not_finite": ("#b3261e", "loss not finite"),
}


def summary(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """A table with a row for each run."""
    rows = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        metric, mode = run.main_metric
        best = last = "–"
        if metric:
            found, (_, value) = run.metrics[metric].best(mode), run.metrics[metric].last
            last = run_summary.number(value)
            if found:
                at = f'<span class="soft"> at {found[0]}</span>'
                best = f"<b>{run_summary.number(found[1])}</b>{at}"
        loss = run.metrics.get("train/loss")
        seconds, amount = run.total("seconds"), run.total(run.unit)
        planned = f'<span class="soft"> / {run.planned_steps}</span>' if run.planned_steps else ""
        none = "none" if run.events else "–"
        troubles = ", ".join(f"{n} {what}" for what, n in run_summary.trouble_counts(run).items())
        parameters = run.parameters.get("total")
        rows.append(
            [
                f"{dot(number)}{escaped(name)}",
                _status(run),
                f"{run.last_step}{planned}",
                escaped(metric.removeprefix("eval/")) or "–",
                best,
                last,
                run_summary.number(loss.last[1]) if loss else "–",
                f"{parameters:,}" if isinstance(parameters, int) else "–",
                "–" if seconds is None else run_summary.duration(seconds),
                "–" if amount is None else f"{amount:,.0f} {run.unit}",
                f'<span class="warn">{escaped(troubles)}</span>' if troubles else none,
            ]
        )
    head = (
        "run", "status", "step", "score", "best", "last", "last train/loss", "parameters", "time",
        "seen", "troubles",
    )  # fmt: skip
    problems = [
        f'<p class="card note warn">{escaped(name)}: {escaped(problem)}</p>'
        for run, name in zip(runs, names, strict=True)
        for problem in run.problems
    ]
    return table(head, rows, numbers=(2, 4, 5, 6, 7, 8, 9)) + "".join(problems)


def _status(run: RunRecord) -> str:
    status = run.status
    if not status:
        return '<span class="soft">not recorded</span>'
    if status == "finished":
        return '<span class="good">finished</span>'
    if run.events[-1]["event"] != "end":
        ago = ""
        when = run.events[-1].get("time")
        if isinstance(when, int | float) and math.isfinite(when):
            seconds = max(0.0, datetime.datetime.now().timestamp() - when)
            ago = f", last event {run_summary.duration(seconds)} ago"
        return f'<span class="warn">running or killed{ago}</span>'
    short = status if len(status) <= 90 else status[:89] + "…"
    return f'<span class="bad" title="{escaped(status)}">{escaped(short)}</span>'


def plots(runs: Sequence[RunRecord]) -> str:
    """An empty box for each metric, which the page's script draws into."""
    parts = []
    for group, metrics in curves.grouped(runs).items():
        parts.append(f'<h3>{escaped(group)}</h3><div class="plots">')
        parts += [
            f'<div class="card plot"><h4>{escaped(metric)}</h4>'
            f'<div class="canvas" data-kind="curve" data-metric="{escaped(metric)}"></div></div>'
            for metric in metrics
        ]
        parts.append("</div>")
    kinds = dict.fromkeys(mark.kind for run in runs for mark in curves.marks(run))
    legend = "".join(
        f'<span><i style="border-color:{MARK_NAMES[kind][0]}"></i>{MARK_NAMES[kind][1]}</span>'
        for kind in kinds
    )
    who = "<span>▲ has the colour of the run</span>"
    keys = f'<div class="keys" id="marks">{legend}{who}</div>' if legend else ""
    return keys + "".join(parts) if parts else "<p>No metrics have been written yet.</p>"


def config(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """What differs between the configs; then each config as a whole, folded."""
    parts = []
    if len(runs) > 1:
        head = ("key", *(f"{dot(n)}{escaped(name)}" for n, name in enumerate(names)))
        rows = config_diff.differences_between([run.config for run in runs])
        cells = [[escaped(key), *map(_value, values)] for key, values in rows]
        same = '<p class="card note">All keys are the same.</p>'
        parts.append(table(head, cells, key="key") if cells else same)
    for name, run in zip(names, runs, strict=True):
        flat = config_diff.flat(run.config).items()
        rows = [[escaped(key), _value(config_diff.shown(value))] for key, value in flat]
        body = (
            table(("key", "value"), rows, key="key") if rows else "<p>config.json is missing.</p>"
        )
        parts.append(f"<details><summary>All keys of {escaped(name)}</summary>{body}</details>")
    return "".join(parts)


def _value(text: str) -> str:
    short = text if len(text) <= 200 else text[:199] + "…"
    return f"<code>{escaped(short)}</code>"


def samples(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """A slider over evaluations and a column for each run; the page's script fills them."""
    sets = sample_data(runs)
    parts = []
    for eval_set, found in sets.items():
        last = len(found["steps"]) - 1
        boxes = "".join(
            f'<div class="card" data-run="{each["run"]}">{dot(each["run"])} '
            f'<b>{escaped(names[each["run"]])}</b> <span class="soft at"></span>'
            f'<pre class="sample"></pre></div>'
            for each in found["runs"]
        )
        parts.append(
            f'<div data-samples="{escaped(eval_set)}"><h3>{escaped(eval_set)}</h3>'
            f"<label>up to step "
            f'<input type="range" min="0" max="{last}" value="{last}" step="1" '
            f'aria-label="step of the samples of {escaped(eval_set)}"><output></output></label>'
            f'<div class="columns">{boxes}</div></div>'
        )
    hint = "No samples: <code>eval.samples</code> is 0, or there was no evaluation yet."
    return "".join(parts) or f"<p>{hint}</p>"


def sample_data(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """{eval set: {"steps": all steps, "runs": [{"run": number, "texts": {step: text}}]}}."""
    sets: dict[str, Any] = {}
    for number, run in enumerate(runs):
        for sample in run.samples:
            found = sets.setdefault(sample.eval_set, {"steps": set(), "runs": {}})
            found["steps"].add(sample.step)
            found["runs"].setdefault(number, {})[sample.step] = sample.text
    return {
        name: {
            "steps": sorted(found["steps"]),
            "runs": [{"run": run, "texts": texts} for run, texts in found["runs"].items()],
        }
        for name, found in sets.items()
    }


def history(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Starts, troubles and ends of each run, as a table."""
    parts = []
    for name, run in zip(names, runs, strict=True):
        rows = [
            [_when(event.get("time")), escaped(event["step"]), escaped(_told(event))]
            for event in run.events
            if event["event"] != "progress"
        ]
        body = table(("time (UTC)", "step", "what happened"), rows[-200:], numbers=(1,))
        missing = "<p>This run recorded no events: it is older than events.jsonl.</p>"
        parts.append(
            f"<details><summary>{escaped(name)}</summary>{body if rows else missing}</details>"
        )
    return "".join(parts)


def _told(event: Mapping[str, Any]) -> str:
    match event["event"]:
        case "start":
            return "started" if not event["step"] else "started again"
        case "rollback":
            return f"loss spike: rolled back to step {event.get('to')}"
        case "skipped":
            return f"skipped, loss {event.get('loss')}"
        case "evaluation_failed":
            return f"evaluation failed: {event.get('reason', '')}"
        case "end":
            return f"ended: {event['reason']}" if event.get("reason") else "finished"
    return str(event["event"])


def _when(value: Any) -> str:
    try:
        at = datetime.datetime.fromtimestamp(value, datetime.UTC)
        return f"{at:%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError, OverflowError, OSError):
        return "–"


def environment(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Versions, devices and data of all runs, side by side."""
    flats = [config_diff.flat(run.environment) for run in runs]
    keys = dict.fromkeys(key for flat in flats for key in flat if not key.startswith("data."))
    head = ("", *(f"{dot(n)}{escaped(name)}" for n, name in enumerate(names)))
    rows = []
    for key in keys:
        values = [config_diff.shown(f[key]) if key in f else config_diff.ABSENT for f in flats]
        rows.append([escaped(key), *map(_value, values)])
    for path, values in (
        ("directory", [str(run.workdir) for run in runs]),
        ("checkpoints", [_listed(run.checkpoints) for run in runs]),
    ):
        rows.append([path, *map(_value, values)])
    return table(head, rows, key="key")


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 12 else f"{len(steps)}, last {steps[-1]}"
