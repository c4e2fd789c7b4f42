"""Figures of runs for papers: one SVG for each metric, drawn by matplotlib.

The same runs give the same bytes, so figures can be kept under version control.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from checkpointing.recorded_run import RunRecord
from experiment.schema import ConfigError
from visualization.curves import UNSMOOTHED, axis_title, smoothed
from visualization.report_page import COLOURS, run_names

STYLE = {
    "svg.hashsalt": "backbone",  # ids would be random otherwise
    "svg.fonttype": "none",  # text stays text, in the font of the document
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "text.parse_math": False,  # names of runs may hold dollar signs
}
SIZE = 4.5, 2.8  # inches: a column of a paper


def write_figures(
    runs: Sequence[RunRecord], directory: Path, *, axis: str = "steps", smoothing: float = 0.0
) -> list[Path]:
    """Writes a figure for each metric; returns their paths. `UNSMOOTHED` stay as they are."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--svg needs matplotlib: pip install -e '.[plots]'") from error
    directory.mkdir(parents=True, exist_ok=True)
    names, paths = run_names(runs), []
    units = " or ".join(sorted({run.unit for run in runs}))
    for metric in dict.fromkeys(name for run in runs for name in run.metrics):
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=SIZE, layout="constrained")
            plot = figure.subplots()
            for number, (run, name) in enumerate(zip(runs, names, strict=True)):
                _draw(plot, run, name, metric, number, axis, smoothing)
            if not plot.lines:
                continue
            plot.set_xlabel("wall time (s)" if axis == "seconds" else axis_title(axis, units))
            plot.set_ylabel(metric)
            if len(runs) > 1:
                plot.legend()
            path = directory / f"{file_name(metric)}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            paths.append(path)
    return paths


def _draw(plot, run: RunRecord, name: str, metric: str, number: int, axis: str, weight: float):
    series = run.metrics.get(metric)
    if series is None:
        return
    x = series.steps
    if axis != "steps":
        x = run.at_steps(run.unit if axis == "tokens" else axis, series.steps)
        if x is None:  # the run recorded no such progress
            return
    values = np.where(np.isfinite(series.values), series.values, np.nan)
    colour = COLOURS["light"][number % len(COLOURS["light"])]
    label = name if not name.startswith("_") else f" {name}"  # matplotlib hides such labels
    if weight and not metric.startswith(UNSMOOTHED):
        plot.plot(x, values, color=colour, alpha=0.25, linewidth=0.8)
        values = smoothed(values, weight)
    marker = "o" if len(values) < 40 else ""
    plot.plot(x, values, color=colour, linewidth=1.5, marker=marker, markersize=3, label=label)


def file_name(metric: str) -> str:
    """A metric's name as the name of a file: eval/dates/loss becomes eval-dates-loss."""
    return re.sub(r"[^\w.]+", "-", metric).strip("-.") or "metric"
