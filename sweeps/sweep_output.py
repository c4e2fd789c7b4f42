"""Reads the results of a sweep and writes its tables, figures and page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from checkpointing.recorded_run import RunRecord, read_run
from experiment.schema import ConfigError
from sweeps import search_table, sweep_table
from sweeps.cell_results import CellResult, read_result, recorded
from sweeps.cells import CELLS
from sweeps.result_files import write_text
from sweeps.search_page import search_page, write_search_figures
from sweeps.search_table import TrialRow
from sweeps.sweep_figures import write_figures
from sweeps.sweep_page import sweep_page
from sweeps.sweep_record import SweepRecord

FIGURES, PAGE = "figures", "sweep.html"


def read_results(sweep: Path, record: SweepRecord) -> dict[str, CellResult]:
    """The result of each cell of a sweep, by name."""
    return {
        name: read_result(
            sweep / CELLS / name,
            record.metrics,
            record.variants[variant].steps,
            probes=record.probes.get(variant, ()),
        )
        for name, (variant, _) in record.cells.items()
    }


def write_search(
    sweep: Path, record: SweepRecord, rows: Sequence[TrialRow], note: Callable[[str], None]
) -> str:
    """Writes tables, figures and the page of a search; returns the table as text."""
    text = search_table.write(sweep, record, rows)
    runs = [recorded(sweep / CELLS / name) for name in record.cells]
    runs = [run for run in runs if run is not None]
    try:
        figures = write_search_figures(sweep / FIGURES, record, rows)
        if runs:
            write_text(sweep / PAGE, search_page(record, rows, runs, figures))
    except ConfigError as error:  # an extra is not installed; the tables are written
        note(str(error))
    return text


def progress_text(sweep: Path, record: SweepRecord) -> str:
    """The table of what is done so far."""
    rows = sweep_table.make_rows(record, read_results(sweep, record))
    return sweep_table.aligned(sweep_table.score_table(record, rows))


def write_all(sweep: Path, record: SweepRecord, note: Callable[[str], None]) -> str:
    """Writes tables, figures and the page; returns the table as text."""
    results = read_results(sweep, record)
    rows = sweep_table.make_rows(record, results)
    sweep_table.write(sweep, record, rows)
    runs: dict[str, list[RunRecord]] = {name: [] for name in record.variants}
    for name, (variant, _) in record.cells.items():
        if results[name].is_begun:
            runs[variant].append(read_run(sweep / CELLS / name))
    begun = [run for found in runs.values() for run in found]
    done = {
        variant: [run for run in found if results[run.name].is_done]
        for variant, found in runs.items()
    }
    try:
        figures = write_figures(sweep / FIGURES, record, rows, done)
        if begun:
            page = sweep_page(record, rows, begun, figures)
            write_text(sweep / PAGE, page)
    except ConfigError as error:  # an extra is not installed; the tables are written
        note(str(error))
    return sweep_table.full_text(record, rows)
