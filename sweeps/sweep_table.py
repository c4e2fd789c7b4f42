"""The table of a sweep: scores over seeds, cost, and differences from the baseline."""

import csv
import dataclasses
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpointing.run_summary import duration, number
from sweeps.cell_results import CellResult
from sweeps.difference_tests import (
    CONFIDENCE,
    Difference,
    difference,
    half_interval,
    mean_and_deviation,
    with_holm,
)
from sweeps.metric_patterns import expand, matches, only_patterns, without_patterns
from sweeps.result_files import without_nan, write_text
from sweeps.sweep_record import SweepRecord

NONE = "–"


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one variant, over its seeds."""

    values: Mapping[int, float]  # by seed
    mean: float | None
    deviation: float | None
    half_interval: float | None  # of the mean
    difference: Difference | None  # None for the baseline itself


@dataclasses.dataclass(frozen=True)
class VariantRow:
    """A row of the table."""

    variant: str
    scores: Mapping[str, Score]  # by metric
    n: int  # seeds that are done
    planned: int
    seconds: float | None  # mean over these seeds
    parameters: int
    flops: int  # of training one seed
    matched: str


def make_rows(record: SweepRecord, results: Mapping[str, CellResult]) -> list[VariantRow]:
    """A row for each variant, in the order of the sweep. `results` are by the names of cells."""
    by_variant: dict[str, dict[int, CellResult]] = {name: {} for name in record.variants}
    planned = dict.fromkeys(record.variants, 0)
    for cell, (variant, seed) in record.cells.items():
        planned[variant] += 1
        if cell in results and results[cell].is_done:
            by_variant[variant][seed] = results[cell]
    names = {name: None for each in results.values() for name in each.values}
    metrics = expand(record.metrics, names)
    scores = {metric: _scores(record, by_variant, metric) for metric in metrics}
    rows = []
    for variant, found in by_variant.items():
        seconds = [each.seconds for each in found.values() if each.seconds is not None]
        counted = [each.parameters for each in found.values() if each.parameters]
        rows.append(
            VariantRow(
                variant=variant,
                scores={metric: each[variant] for metric, each in scores.items()},
                n=len(found),
                planned=planned[variant],
                seconds=mean_and_deviation(seconds)[0],
                parameters=counted[0] if counted else record.variants[variant].parameters,
                flops=_flops(record, variant, found.values()),
                matched=record.variants[variant].matched,
            )
        )
    return rows


def _flops(record: SweepRecord, variant: str, results: Collection[CellResult]) -> int:
    """FLOPs of training one seed: of the steps that the runs took, which may have ended early."""
    if not results:
        return record.flops(variant)
    steps = sum(result.step for result in results) / len(results)
    return round(record.variants[variant].step_flops * steps)


def _scores(
    record: SweepRecord, by_variant: Mapping[str, Mapping[int, CellResult]], metric: str
) -> dict[str, Score]:
    """The scores of all variants in one metric."""
    values = {
        variant: {
            seed: found[seed].values[metric]
            for seed in sorted(found)
            if metric in found[seed].values  # of a pattern, a variant may have other numbers
        }
        for variant, found in by_variant.items()
    }
    baseline = record.baseline
    key = record.variants[baseline].data_key
    differences = with_holm(
        {
            variant: difference(
                values[variant], values[baseline], paired=record.variants[variant].data_key == key
            )
            for variant in values
            if variant != baseline
        }
    )
    return {
        variant: Score(
            each,
            *mean_and_deviation(list(each.values())),
            half_interval(list(each.values())),
            differences.get(variant),
        )
        for variant, each in values.items()
    }


def score_table(record: SweepRecord, rows: Sequence[VariantRow]) -> list[list[str]]:
    """The cells of the main table, with its head: scores and cost of each variant."""
    metrics = without_patterns(record.metrics)
    head = ["variant", *(name for metric in metrics for name in (metric, "sd"))]
    lines = [[*head, "n", "time", "parameters", "FLOPs"]]
    for row in rows:
        scores = [row.scores[metric] for metric in metrics]
        cells = [shown(each) for score in scores for each in (score.mean, score.deviation)]
        count = str(row.n) if row.n == row.planned else f"{row.n} of {row.planned}"
        time = NONE if row.seconds is None else duration(row.seconds)
        costs = [count, time, f"{row.parameters:,}", f"{row.flops:.3g}"]
        lines.append([row.variant, *cells, *costs])
    return lines


def difference_table(rows: Sequence[VariantRow], metric: str) -> list[list[str]]:
    """The cells of a table, with its head: differences from the baseline in one metric."""
    lines = [["variant", "difference", f"{CONFIDENCE:.0%} interval", "p", "p (Holm)", "n", "test"]]
    for row in rows:
        found = row.scores[metric].difference
        if found is None:
            continue
        interval = NONE if found.low is None else f"{signed(found.low)} to {signed(found.high)}"
        numbers = [signed(found.mean), interval, shown(found.p_value), shown(found.p_holm)]
        lines.append([row.variant, *numbers, str(found.n), found.test or found.note])
    return lines


def difference_title(record: SweepRecord, metric: str) -> str:
    """The title of a `difference_table`."""
    return f"{metric}: difference from {record.baseline}"


def text_differences(record: SweepRecord, rows: Sequence[VariantRow]) -> str:
    """A block for each metric; "" with one variant."""
    if len(rows) < 2:
        return ""
    return "\n\n".join(
        f"{difference_title(record, metric)}\n{aligned(difference_table(rows, metric))}"
        for metric in without_patterns(record.metrics)
    )


def profile_table(rows: Sequence[VariantRow], pattern: str) -> list[list[str]]:
    """The means of all metrics of a pattern: a column for each number; [] if there are none."""
    numbers = matches(pattern, rows[0].scores) if rows else {}
    if not numbers:
        return []
    lines = [[row.variant, *(shown(row.scores[metric].mean) for metric in numbers)] for row in rows]
    return [["variant", *(f"{each:g}" for each in numbers.values())], *lines]


def text_profiles(record: SweepRecord, rows: Sequence[VariantRow]) -> str:
    """A block for each pattern among the metrics."""
    tables = {each: profile_table(rows, each) for each in only_patterns(record.metrics)}
    return "\n\n".join(f"{each}\n{aligned(table)}" for each, table in tables.items() if table)


LEGEND = (
    "mean and sd (sample standard deviation) are over seeds; time and FLOPs are of one seed. "
    "Paired tests compare runs with the same seed and the same order of examples. p (Holm) is "
    "corrected for the number of variants."
)


def full_text(record: SweepRecord, rows: Sequence[VariantRow]) -> str:
    """All of the table as text."""
    parts = [f"claim: {record.claim}"] if record.claim else []
    parts += [
        aligned(score_table(record, rows)),
        text_profiles(record, rows),
        text_differences(record, rows),
    ]
    matched = [f"{row.variant}: {row.matched}" for row in rows if row.matched]
    if matched:
        parts.append(f"matched {record.match}:\n" + "\n".join(matched))
    return "\n\n".join([part for part in parts if part] + [LEGEND])


def shown(value: float | None) -> str:
    """A value as a cell; a mark if there is none."""
    return NONE if value is None else number(value)


def signed(value: float | None) -> str:
    """A difference as a cell, with its sign; a mark if there is none."""
    return NONE if value is None else f"{value:+.4g}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def as_json(record: SweepRecord, rows: Sequence[VariantRow]) -> dict[str, Any]:
    """All of the table as plain data, with the values of each seed."""
    return {
        "name": record.name,
        "claim": record.claim,
        "config": record.config,
        "common": dict(record.common),
        "metrics": list(record.metrics),
        "baseline": record.baseline,
        "match": record.match,
        "confidence": CONFIDENCE,
        "variants": [
            {
                **dataclasses.asdict(row),
                "overrides": {
                    **record.variants[row.variant].overrides,
                    **record.variants[row.variant].sizes,
                },
            }
            for row in rows
        ],
    }


def csv_text(rows: Sequence[VariantRow]) -> str:
    """A line for each variant and metric."""
    fields = [field.name for field in dataclasses.fields(Difference)]
    own = ("p_value", "p_holm", "test", "note")
    names = [name if name in own else f"difference_{name}" for name in fields]
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    costs = ("n", "planned", "seconds", "parameters", "flops")
    lines.writerow(["variant", "metric", "mean", "sd", *costs, *names])
    for row in rows:
        for metric, score in row.scores.items():
            found = score.difference
            lines.writerow(
                [row.variant, metric, score.mean, score.deviation]
                + [getattr(row, cost) for cost in costs]
                + [getattr(found, field) if found else None for field in fields]
            )
    return file.getvalue()


def write(sweep: Path, record: SweepRecord, rows: Sequence[VariantRow]) -> None:
    """Writes table.txt, table.csv and table.json."""
    write_text(sweep / "table.txt", full_text(record, rows) + "\n")
    write_text(sweep / "table.csv", csv_text(rows))
    content = json.dumps(without_nan(as_json(record, rows)), indent=2)
    write_text(sweep / "table.json", f"{content}\n")
