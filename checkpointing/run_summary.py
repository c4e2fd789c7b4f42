"""A few lines about a run: best and last score, time, tokens, and where to look."""

import os
import shlex
from collections.abc import Sequence
from typing import TextIO

from checkpointing.recorded_run import RunRecord

BOLD, RESET = "\033[1m", "\033[0m"


def end_of_run(run: RunRecord) -> str:
    """The lines that train.py prints at its end, in the style of its log."""
    lines = facts(run)
    if run.samples:
        lines.append(("samples", str(run.workdir / "samples")))
    command = f"python report.py --workdirs={shlex.quote(str(run.workdir))}"
    lines.append(("look", f"{command} (curves, samples); add --text for these lines"))
    return "\n".join(f"{name}: {printable(value)}" for name, value in lines)


def of_runs(runs: Sequence[RunRecord], *, colour: bool = False) -> str:
    """The summary that report.py --text prints: a block for each run."""
    blocks = []
    for run in runs:
        title = printable(str(run.workdir))
        title = f"{BOLD}{title}{RESET}" if colour else title
        rows = [*facts(run), *(("not read", problem) for problem in run.problems)]
        width = max(len(name) for name, _ in rows)
        blocks.append("\n".join([title, *(f"  {n:<{width}}  {printable(v)}" for n, v in rows)]))
    return "\n\n".join(blocks)


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """(name, value) of what sums up a run. What is not known is left out."""
    planned = f" of {run.planned_steps}" if run.planned_steps is not None else ""
    status = f", {run.status}" if run.status else ""
    rows = [("step", f"{run.last_step}{planned}{status}")]
    metric, mode = run.main_metric
    if metric:
        series = run.metrics[metric]
        best, (last_step, last) = series.best(mode), series.last
        at_best = f"{number(best[1])} at step {best[0]}" if best else "none is finite"
        rows.append(("best", f"{metric} {at_best} ({mode})"))
        rows.append(("last", f"{metric} {number(last)} at step {last_step}"))
    if "train/loss" in run.metrics:
        step, loss = run.metrics["train/loss"].last
        rows.append(("train/loss", f"{number(loss)} at step {step}"))
    if (seconds := run.total("seconds")) is not None:
        rows.append(("time", duration(seconds)))
    if (amount := run.total(run.unit)) is not None:
        rows.append((run.unit, f"{amount:,.0f}"))
    if isinstance(run.parameters.get("total"), int):
        rows.append(("parameters", f"{run.parameters['total']:,}"))
    if troubles := trouble_counts(run):
        rows.append(("troubles", ", ".join(f"{count} {what}" for what, count in troubles.items())))
    return rows


TROUBLES = {
    "skipped": ("skipped step", "skipped steps"),
    "rollback": ("rollback", "rollbacks"),
    "evaluation_failed": ("failed evaluation", "failed evaluations"),
}


def trouble_counts(run: RunRecord) -> dict[str, int]:
    """How often a run was started again, skipped a step, rolled back, or failed to evaluate."""
    kinds = [event["event"] for event in run.events]
    counts = {TROUBLES[k][kinds.count(k) > 1]: kinds.count(k) for k in TROUBLES if k in kinds}
    restarts = len(restart_steps(run))
    return ({"restart" + "s" * (restarts > 1): restarts} if restarts else {}) | counts


def restart_steps(run: RunRecord) -> list[int]:
    """The steps from which a run was started again, while steps were left."""
    starts = [event["step"] for event in run.events if event["event"] == "start"]
    return [step for step in starts[1:] if step != run.planned_steps]


def number(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Such as "42 s", "5 min 18 s" or "3 h 7 min"."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def printable(text: str) -> str:
    """Without control characters, which could change what a terminal shows."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours and whose user has not declined them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()
