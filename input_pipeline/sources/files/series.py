"""A time series in a CSV file: one column of times, one of numbers.

An example is a window: data.length values to read, and the data.options.horizon values after them.
The end of the series is held out: the last data.eval_share is the split `test`, as much before it
`validation`. A window belongs to the split of the values that it forecasts; the values that it
reads may be older.
"""

import csv
import dataclasses
import datetime
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from absl import logging

from experiment.schema import ConfigError, Count, PositiveInt, did_you_mean
from experiment.untrusted_files import require_regular
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    BadRecordError,
    Example,
    MissingSplitError,
    Source,
    Splits,
    content_digest,
)
from input_pipeline.sources.signal_statistics import mean_and_std

# Raise this when the same file gives other examples than before.
VERSION = 1
SPLITS = ("validation", "test")
MISSING = ("", "na", "nan", "null", "none", "?")


@dataclasses.dataclass(frozen=True)
class SeriesOptions:
    """The options of series_files."""

    column: str = ""  # of the numbers; "": the last one
    time_column: str = ""  # dates or numbers that increase; "": the first one
    horizon: PositiveInt = 12  # values to forecast
    # What is subtracted from a window: its last value or its mean, so that a trend does not take
    # the model to values that it has never read; or nothing
    center: Literal["last", "mean", "none"] = "last"
    longest_gap: Count = 0  # missing values in a row that repeat the one before them


@dataclasses.dataclass(frozen=True)
class TimeSeries:
    """A series at equal steps. Values that were missing repeat the one before them."""

    times: tuple[str, ...]  # as in the file; "" for a missing row
    values: np.ndarray  # (T,) float64
    is_known: np.ndarray  # (T,) whether the file has the value


def read_series(path: Path, options: SeriesOptions) -> TimeSeries:
    """Reads a CSV file with a heading; raises ConfigError if it is no series or has long gaps."""
    rows = _rows(path)
    heading = rows[0][1]
    time_at = _column(path, heading, "time_column", options.time_column or heading[0])
    value_at = _column(path, heading, "column", options.column or heading[-1])
    if time_at == value_at:
        raise ConfigError(
            f"{path}: the column {heading[value_at]!r} cannot be both time and value; set "
            "data.options.column and data.options.time_column"
        )
    times, values = [], []
    for line, row in rows[1:]:
        if len(row) != len(heading):
            raise BadRecordError(
                f"{path}:{line}: {len(row)} columns, but the heading has {len(heading)}"
            )
        times.append(_time(path, line, row[time_at].strip()))
        values.append(_value(path, line, row[value_at].strip()))
    if len(values) < 2:
        raise ConfigError(f"{path} has {len(values)} values; a series needs more")
    places = _places(path, [line for line, _ in rows[1:]], np.array(times, np.float64))
    full = np.full(places[-1] + 1, np.nan)
    full[places] = values
    names = [""] * len(full)
    for place, (_, row) in zip(places.tolist(), rows[1:], strict=True):
        names[place] = row[time_at].strip()
    return _filled(path, names, full, options.longest_gap)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of the file that are not empty, with their line numbers; the heading first."""
    try:
        with require_regular(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as CSV: {error}") from error
    if not rows:
        raise ConfigError(f"{path} is empty")
    return rows


def _column(path: Path, heading: Sequence[str], key: str, name: str) -> int:
    names = [each.strip() for each in heading]
    if len(names) < 2:
        raise ConfigError(
            f"{path} has the heading {','.join(names)!r}; a series has a column of times and one "
            "of numbers, separated by a comma"
        )
    if name.strip() not in names:
        raise ConfigError(
            f"data.options.{key}={name!r} is not a column of {path}."
            f"{did_you_mean(name, names)} There are: {', '.join(names)}"
        )
    return names.index(name.strip())


def _time(path: Path, line: int, text: str) -> float:
    """A date in days, or a number."""
    try:
        if len(text) != 8 or not text.isdecimal():  # 20240131 is a date
            return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise BadRecordError(
            f"{path}:{line}: the time {text!r} is neither a number nor a date such as 2024-01-31"
        ) from None
    moment = moment.replace(tzinfo=moment.tzinfo or datetime.UTC)
    return moment.timestamp() / 86400


def _value(path: Path, line: int, text: str) -> float:
    if text.lower() in MISSING:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise BadRecordError(f"{path}:{line}: {text!r} is not a number; correct it") from None
    if not math.isfinite(value):
        raise BadRecordError(f"{path}:{line}: {text!r} is not a finite number; correct it")
    return value


def _places(path: Path, lines: Sequence[int], times: np.ndarray) -> np.ndarray:
    """The place of each row in a series at equal steps: rows that are not there leave places free.

    The step is the median; months may differ by some days.
    """
    steps = np.diff(times)
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0)) + 1
        raise ConfigError(
            f"{path}:{lines[at]}: its time is not after that of the line before; sort the file, "
            "with one line for each time"
        )
    counts = np.maximum(1, np.round(steps / np.median(steps))).astype(int)
    return np.append(0, np.cumsum(counts))


def _filled(path: Path, names: Sequence[str], values: np.ndarray, longest_gap: int) -> TimeSeries:
    """Repeats the value before each gap; raises ConfigError for gaps that are too long."""
    is_known = np.isfinite(values)
    if not is_known.any():
        raise ConfigError(f"{path} has no number in its column of values")
    first, last = np.flatnonzero(is_known)[[0, -1]]
    names, values = tuple(names[first : last + 1]), values[first : last + 1]
    is_known = is_known[first : last + 1]
    # Of each place, the nearest known one that is not after it
    before = np.maximum.accumulate(np.where(is_known, np.arange(len(values)), 0))
    lengths = np.arange(len(values)) - before
    if longest := int(lengths.max()):
        end = int(lengths.argmax())
        where = f"after {names[end - longest] or 'its beginning'}"
        if longest > longest_gap:
            raise ConfigError(
                f"{path} has gaps: {(~is_known).sum():,} of {len(values):,} values are missing, up "
                f"to {longest} in a row ({where}); fill them in, or set data.options.longest_gap="
                f"{longest} to repeat the value before a gap"
            )
        logging.warning(
            "%s: %d of %d values are missing, up to %d in a row (%s); the value before a gap is "
            "repeated, and not scored",
            path, (~is_known).sum(), len(values), longest, where,
        )  # fmt: skip
    return TimeSeries(names, values[before], is_known)


class Windows(Sequence):
    """The windows of a series whose forecast lies in [start, stop), one for each first value."""

    def __init__(
        self, series: TimeSeries, length: int, options: SeriesOptions, start: int, stop: int
    ):
        self._series, self._length, self._options = series, length, options
        self._first = max(start, length)  # place of the first forecast value
        self._count = max(0, stop - options.horizon - self._first + 1)

    def __len__(self):
        return self._count

    def __getitem__(self, index: int) -> Example:
        if not -self._count <= index < self._count:
            raise IndexError(index)
        at, series = self._first + index % self._count, self._series
        ahead = slice(at, at + self._options.horizon)
        window = window_of(series.values[at - self._length : at], self._options.center)
        return {
            **window,
            "future": (series.values[ahead] - window["offset"]).astype(np.float32),
            "is_known": series.is_known[ahead],
            "name": f"after {series.times[at - 1] or f'value {at}'}",
        }


def window_of(values: np.ndarray, center: str) -> Example:
    """What the model reads of these values, (length, 1), and what was subtracted from them."""
    offset = {"last": values[-1], "mean": values.mean(), "none": 0.0}[center]
    return {"signal": (values - offset).astype(np.float32)[:, None], "offset": float(offset)}


def load(data: DataConfig) -> Splits:
    """The windows of the series at data.path; raises ConfigError if it cannot be used."""
    options, path = data.source_options, _path(data)
    if data.eval_split not in SPLITS:
        raise MissingSplitError(
            f"data.eval_split={data.eval_split!r} is not one of: {', '.join(SPLITS)}."
            f"{did_you_mean(data.eval_split, SPLITS)}",
            data.eval_split,
            SPLITS,
        )
    series = read_series(path, options)
    size = round(len(series.values) * data.eval_share)
    ends = [len(series.values) - n * size for n in (2, 1, 0)]
    bounds = dict(zip(SPLITS, itertools.pairwise(ends), strict=True))
    train = Windows(series, data.length, options, 0, ends[0])
    scored = Windows(series, data.length, options, *bounds[data.eval_split])
    for name, windows in ((data.train_split, train), (data.eval_split, scored)):
        if not len(windows):
            raise ConfigError(
                f"{path} has {len(series.values):,} values, too few for one window of "
                f"data.length={data.length} and data.options.horizon={options.horizon} in the "
                f"split {name!r}; lower them, or change data.eval_share={data.eval_share:g}"
            )
    content = [series.values.tobytes(), series.is_known.tobytes(), *series.times]
    keys = f"{VERSION} {options} {data.length} {data.eval_share} {data.eval_split}"
    return Splits(
        kind="series",
        train=train,
        evals={data.eval_split: scored},
        labels=(),
        description={
            "values": len(series.values),
            "missing": int((~series.is_known).sum()),
            "trained_on_values": ends[0],
        },
        digest=content_digest([keys, *content]),
        mean_and_std=mean_and_std(train),
    )


def _path(data: DataConfig) -> Path:
    if not data.path:
        raise ConfigError(
            "data.path is empty, but data.source='series_files' reads a CSV file; name it with "
            "--config.data.path=FILE.csv"
        )
    path = Path(data.path).expanduser()
    if not path.is_file():
        raise ConfigError(f"data.path={data.path} is not a file; give one CSV file")
    return path


def outline(data: DataConfig) -> Example:
    """A made-up example, with the shapes of all examples."""
    horizon = data.source_options.horizon
    future = dict(future=np.zeros(horizon, np.float32), is_known=np.ones(horizon, bool))
    return {"signal": np.zeros((data.length, 1), np.float32), "offset": 0.0, **future}


def read(data: DataConfig, path: Path) -> Example:
    """The last window of the series in a file, for a forecast of what follows it."""
    series = read_series(path, data.source_options)
    if len(series.values) < data.length:
        raise ConfigError(
            f"{path} has {len(series.values):,} values, and the model reads {data.length:,}; give "
            "a longer series"
        )
    return window_of(series.values[-data.length :], data.source_options.center)


SOURCE = Source("series_files", load, "series", "path", SeriesOptions, outline=outline, read=read)
