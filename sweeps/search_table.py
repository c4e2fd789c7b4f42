"""The table of a search: the values of each trial, how far it went and what it reached."""

import csv
import dataclasses
import io
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpointing.run_summary import duration
from sweeps.result_files import without_nan, write_text
from sweeps.sweep_record import SweepRecord
from sweeps.sweep_table import NONE, aligned, shown
from training.main_metric import mode_of


@dataclasses.dataclass(frozen=True)
class TrialRow:
    """One trial of a search."""

    trial: str
    overrides: Mapping[str, str]
    steps: int  # of the last rung that it finished; 0: none
    values: Mapping[str, float]  # by metric, at that step
    seconds: float | None
    note: str = ""


def ordered(record: SweepRecord, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The trials that went furthest first; among those, the best first."""
    metric = record.metrics[0]
    sign = 1 if mode_of(metric) == "max" else -1

    def key(row: TrialRow) -> tuple:
        value = row.values.get(metric, math.nan)
        return -row.steps, not math.isfinite(value), -sign * value if math.isfinite(value) else 0

    return sorted(rows, key=key)


def searched_keys(rows: Sequence[TrialRow]) -> list[str]:
    """The config keys that the trials set."""
    return list(dict.fromkeys(key for row in rows for key in row.overrides))


def trial_table(record: SweepRecord, rows: Sequence[TrialRow]) -> list[list[str]]:
    """The cells of the table of all trials, with its head."""
    keys = searched_keys(rows)
    lines = [["trial", *keys, "steps", *record.metrics, "time", ""]]
    for row in ordered(record, rows):
        own = [row.overrides[key] for key in keys]
        values = [shown(row.values.get(metric)) for metric in record.metrics]
        time = NONE if row.seconds is None else duration(row.seconds)
        lines.append([row.trial, *own, str(row.steps), *values, time, row.note])
    return lines


def text_table(record: SweepRecord, rows: Sequence[TrialRow]) -> str:
    """The table of all trials as text."""
    return aligned(trial_table(record, rows))


def best_line(record: SweepRecord, rows: Sequence[TrialRow]) -> str:
    """The best trial, and the command that repeats it with several seeds."""
    best = ordered(record, rows)[0]
    if not best.steps:
        return "no trial has finished"
    values = ";".join(f"{key}={value}" for key, value in best.overrides.items())
    common = record.common.items()
    flags = [f"--config.{key}={shlex.quote(value)}" for key, value in common]
    return (
        f"best: {best.trial} of {len(rows)}, by one seed. Close trials may differ by chance; "
        "repeat the best with seeds:\n"
        f"python sweep.py --config={record.config} --grid={shlex.quote(values + ';seed=0..4')} "
        + " ".join(flags)
    )


def full_text(record: SweepRecord, rows: Sequence[TrialRow]) -> str:
    """The table and what to do with the best trial."""
    return f"{text_table(record, rows)}\n\n{best_line(record, rows)}"


def write(sweep: Path, record: SweepRecord, rows: Sequence[TrialRow]) -> str:
    """Writes table.txt, table.csv and table.json; returns the text."""
    text = full_text(record, rows)
    write_text(sweep / "table.txt", f"{text}\n")
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    keys = searched_keys(rows)
    lines.writerow(["trial", *keys, "steps", *record.metrics, "seconds", "note"])
    for row in rows:
        own = [row.overrides[key] for key in keys]
        values = [row.values.get(metric) for metric in record.metrics]
        lines.writerow([row.trial, *own, row.steps, *values, row.seconds, row.note])
    write_text(sweep / "table.csv", file.getvalue())
    content = {
        "name": record.name,
        "config": record.config,
        "common": dict(record.common),
        "search": dict(record.search),
        "metrics": list(record.metrics),
        "trials": [dataclasses.asdict(row) for row in rows],
    }
    write_text(sweep / "table.json", json.dumps(without_nan(content), indent=2) + "\n")
    return text
