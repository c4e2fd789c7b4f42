"""Figures of a sweep as SVG: bars over variants, curves over steps, lines over a config key, and
profiles over the number in the names of metrics.

The same results give the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from checkpointing.recorded_run import RunRecord
from experiment.schema import ConfigError
from sweeps.grid import CONFIG
from sweeps.metric_patterns import matches, only_patterns, without_patterns
from sweeps.sweep_record import SweepRecord
from sweeps.sweep_table import VariantRow
from visualization.report_figures import SIZE, STYLE, file_name
from visualization.report_page import COLOURS

Runs = Mapping[str, Sequence[RunRecord]]  # of each variant


def write_figures(
    directory: Path, record: SweepRecord, rows: Sequence[VariantRow], runs: Runs
) -> list[Path]:
    """Writes the figures of a sweep; returns their paths. Needs matplotlib."""
    paths = []
    for plot in record.plots or default_plots(record.metrics):
        kind = plot["kind"]
        height = max(SIZE[1], 0.6 + 0.3 * len(rows)) if kind == "bars" else SIZE[1]
        for metric in plotted_metrics(plot, record.metrics):

            def draw(axes, metric=metric, plot=plot) -> bool:
                match plot["kind"]:
                    case "bars":
                        return draw_bars(axes, rows, metric)
                    case "curves":
                        return draw_curves(axes, runs, metric)
                    case "profile":
                        return draw_profile(axes, rows, metric, plot)
                    case _:
                        return draw_lines(axes, record, rows, metric, plot)

            path = directory / f"{file_name(metric)}-{_kind_name(plot)}.svg"
            paths += write_figure(path, draw, height)
    return list(dict.fromkeys(paths))


def write_figure(path: Path, draw: Callable[[Any], bool], height: float = SIZE[1]) -> list[Path]:
    """Writes a figure as SVG; returns its path in a list, or [] if there is nothing to draw.

    `draw` gets matplotlib's axes and says whether it has drawn. `height` is in inches.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install -e '.[report]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        if not draw(figure.subplots()):
            return []
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return [path]


def default_plots(metrics: Sequence[str]) -> list[dict[str, str]]:
    """Bars and curves of each metric, and a profile of each pattern."""
    plain, patterns = without_patterns(metrics), only_patterns(metrics)
    plots = [{"kind": kind, "metric": metric} for metric in plain for kind in ("bars", "curves")]
    return plots + [{"kind": "profile", "metric": pattern} for pattern in patterns]


def plotted_metrics(plot: Mapping, metrics: Sequence[str]) -> list[str]:
    """The metric of a plot, or all that its kind can draw."""
    if plot.get("metric"):
        return [plot["metric"]]
    return only_patterns(metrics) if plot["kind"] == "profile" else without_patterns(metrics)


def _kind_name(plot: Mapping) -> str:
    return f"lines-{plot['x']}" if plot["kind"] == "lines" else plot["kind"]


def _colour(number: int) -> str:
    return COLOURS["light"][number % len(COLOURS["light"])]


def draw_bars(axes, rows: Sequence[VariantRow], metric: str) -> bool:
    """A bar for each mean, with the interval of the mean and a dot for each seed."""
    shown = [row for row in rows if row.scores[metric].mean is not None]
    for place, row in enumerate(shown):
        score = row.scores[metric]
        axes.barh(place, score.mean, color=_colour(0), alpha=0.35, height=0.7)
        if score.half_interval is not None:
            axes.errorbar(score.mean, place, xerr=score.half_interval, color="black", capsize=3)
        values = list(score.values.values())
        axes.plot(values, [place] * len(values), "o", color=_colour(0), markersize=3)
    axes.set_yticks(range(len(shown)), [row.variant for row in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(metric)
    return bool(shown)


def draw_curves(axes, runs: Runs, metric: str) -> bool:
    """The mean over seeds at each step, with a band of one standard deviation."""
    drawn = False
    for number, (variant, found) in enumerate(runs.items()):
        series = [run.metrics[metric] for run in found if metric in run.metrics]
        if not series:
            continue
        steps = sorted(set.intersection(*(set(each.steps.tolist()) for each in series)))
        values = np.array([each.values[np.isin(each.steps, steps)] for each in series])
        values = np.where(np.isfinite(values), values, np.nan)
        mean = values.mean(axis=0)
        marker = "o" if len(steps) < 40 else ""
        colour = _colour(number)
        axes.plot(steps, mean, color=colour, marker=marker, markersize=3, label=variant)
        if len(series) > 1:
            band = values.std(axis=0, ddof=1)
            axes.fill_between(steps, mean - band, mean + band, color=colour, alpha=0.15, lw=0)
        drawn = drawn or bool(steps)
    axes.set_xlabel("step")
    axes.set_ylabel(metric)
    if len(runs) > 1 and drawn:
        axes.legend()
    return drawn


def draw_lines(
    axes, record: SweepRecord, rows: Sequence[VariantRow], metric: str, plot: Mapping
) -> bool:
    """The mean over the values of a config key, with a line for each value of the keys in `by`."""
    by = plot.get("by", CONFIG)
    keys = (by,) if isinstance(by, str) else tuple(by)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        overrides = {**record.common, **record.variants[row.variant].overrides}
        score = row.scores[metric]
        try:
            x = float(overrides[plot["x"]])
        except (KeyError, ValueError):
            continue  # a variant that does not set the key, or not to a number
        if score.mean is not None:
            label = " ".join(overrides.get(key, "") for key in keys)
            lines.setdefault(label, []).append((x, score.mean, score.half_interval or 0.0))
    for number, (label, points) in enumerate(lines.items()):
        _draw_line(axes, sorted(points), number, label)
    if plot.get("log_x"):
        axes.set_xscale("log")
    axes.set_xlabel(plot["x"])
    axes.set_ylabel(metric)
    if len(lines) > 1:
        axes.legend()
    return bool(lines)


def draw_profile(axes, rows: Sequence[VariantRow], pattern: str, plot: Mapping) -> bool:
    """The mean over the number in a metric's name, a line for each variant, with intervals."""
    numbers = matches(pattern, rows[0].scores) if rows else {}
    drawn = 0
    for number, row in enumerate(rows):
        scores = [(x, row.scores[metric]) for metric, x in numbers.items()]
        points = [(x, s.mean, s.half_interval or 0.0) for x, s in scores if s.mean is not None]
        if not points:
            continue
        _draw_line(axes, points, number, row.variant)
        drawn += 1
    axes.set_xscale("log" if plot.get("log_x") else "linear")
    axes.set_yscale("log" if plot.get("log_y") else "linear")
    axes.set_xlabel("*")
    axes.set_ylabel(pattern)
    if drawn > 1:
        axes.legend()
    return drawn > 0


def _draw_line(axes, points: Sequence[tuple[float, float, float]], number: int, label: str) -> None:
    """A line through points (x, mean, half of the interval)."""
    x, mean, half = np.array(points).T
    axes.errorbar(
        x, mean, yerr=half, color=_colour(number), marker="o", markersize=3, capsize=2, label=label
    )
