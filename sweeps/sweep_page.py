"""The page of a sweep: its tables and figures, above the report of all its runs."""

from collections.abc import Sequence
from pathlib import Path

from checkpointing.recorded_run import RunRecord
from sweeps.metric_patterns import only_patterns, without_patterns
from sweeps.sweep_record import SweepRecord
from sweeps.sweep_table import (
    LEGEND,
    VariantRow,
    difference_table,
    difference_title,
    profile_table,
    score_table,
)
from visualization.html_parts import escaped, table
from visualization.report_page import report_page


def sweep_page(
    record: SweepRecord,
    rows: Sequence[VariantRow],
    runs: Sequence[RunRecord],
    figures: Sequence[Path],
) -> str:
    """One HTML file. It needs plotly, like the report of runs."""
    return report_page(runs, title=record.name, lead=lead(record, rows, figures))


def lead(record: SweepRecord, rows: Sequence[VariantRow], figures: Sequence[Path]) -> str:
    """The part of the page above the runs."""
    parts = ['<section id="sweep"><h2>Sweep</h2>']
    if record.claim:
        parts.append(f"<p><b>Claim:</b> {escaped(record.claim)}</p>")
    parts.append(_scores(record, rows))
    parts += [_profile(rows, pattern) for pattern in only_patterns(record.metrics)]
    if len(rows) > 1:
        metrics = without_patterns(record.metrics)
        parts += [_differences(record, rows, metric) for metric in metrics]
    matched = [row for row in rows if row.matched]
    if matched:
        lines = [_escaped((row.variant, row.matched)) for row in matched]
        parts.append(f"<h3>matched {escaped(record.match)}</h3>")
        parts.append(table(("variant", "chosen"), lines))
    parts.append(f'<p class="soft">{escaped(LEGEND)}</p>')
    parts += [inline_figure(path) for path in figures]
    return "".join([*parts, "</section>"])


def _scores(record: SweepRecord, rows: Sequence[VariantRow]) -> str:
    head, *lines = score_table(record, rows)
    lines = [_escaped(line) for line in lines]
    means = slice(1, 1 + 2 * len(without_patterns(record.metrics)), 2)
    for line in lines:
        line[means] = [f"<b>{cell}</b>" for cell in line[means]]
    return table(_escaped(head), lines, numbers=range(1, len(head)))


def _profile(rows: Sequence[VariantRow], pattern: str) -> str:
    """The means of all metrics of a pattern."""
    head, *lines = profile_table(rows, pattern) or [[]]
    if not head:
        return ""
    cells = table(head, map(_escaped, lines), numbers=range(1, len(head)))
    return f"<h3>{escaped(pattern)}</h3>{cells}"


def _differences(record: SweepRecord, rows: Sequence[VariantRow], metric: str) -> str:
    head, *lines = difference_table(rows, metric)
    title = escaped(difference_title(record, metric))
    return f"<h3>{title}</h3>{table(head, map(_escaped, lines), numbers=range(1, 6))}"


def _escaped(cells: Sequence[str]) -> list[str]:
    return [escaped(cell) for cell in cells]


def inline_figure(path: Path) -> str:
    """A figure inside the page. matplotlib draws on white, so its box is always white."""
    text = path.read_text(encoding="utf-8")
    return (
        '<div class="card" style="background:#fff;display:inline-block;margin:.3rem">'
        f"{text[text.index('<svg') :]}</div>"
    )
