"""The page of a search: its table, the score over each key, and the report of all trials."""

from collections.abc import Sequence
from pathlib import Path

from checkpointing.recorded_run import RunRecord
from sweeps.search_table import TrialRow, searched_keys, trial_table
from sweeps.sweep_figures import write_figure
from sweeps.sweep_page import inline_figure
from sweeps.sweep_record import SweepRecord
from visualization.html_parts import escaped, table
from visualization.report_figures import file_name
from visualization.report_page import COLOURS, report_page


def write_search_figures(
    directory: Path, record: SweepRecord, rows: Sequence[TrialRow]
) -> list[Path]:
    """Writes a figure for each numeric key: the first metric over its values. Needs matplotlib.

    Trials that went less far are pale.
    """
    metric, paths = record.metrics[0], []
    done = [row for row in rows if metric in row.values]
    furthest = max((row.steps for row in done), default=0)
    for key in searched_keys(done):
        points = [(_number(row.overrides[key]), row.values[metric], row.steps) for row in done]
        points = [point for point in points if point[0] is not None]

        def draw(axes, key=key, points=points) -> bool:
            for x, y, steps in points:
                alpha = 1.0 if steps == furthest else 0.35
                axes.plot([x], [y], "o", color=COLOURS["light"][0], alpha=alpha, markersize=4)
            values = [x for x, _, _ in points]
            if points and min(values) > 0 and max(values) / min(values) > 10:
                axes.set_xscale("log")
            axes.set_xlabel(key)
            axes.set_ylabel(metric)
            return bool(points)

        paths += write_figure(directory / f"{file_name(metric)}-{file_name(key)}.svg", draw)
    return paths


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def search_page(
    record: SweepRecord,
    rows: Sequence[TrialRow],
    runs: Sequence[RunRecord],
    figures: Sequence[Path],
) -> str:
    """One HTML file. It needs plotly, like the report of runs."""
    head, *lines = [[escaped(cell) for cell in line] for line in trial_table(record, rows)]
    trials = table(head, lines, numbers=range(1, len(head) - 1))
    once = '<p class="soft">Each trial has one seed: close trials may differ by chance.</p>'
    lead = f'<section id="sweep"><h2>Search</h2>{trials}{once}'
    lead += "".join(map(inline_figure, figures)) + "</section>"
    return report_page(runs, title=record.name, lead=lead)
