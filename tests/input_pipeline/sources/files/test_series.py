import datetime

import numpy as np
import pytest
from absl import logging

from experiment.schema import ConfigError
from input_pipeline.sources.files import series
from input_pipeline.sources.files.series import SeriesOptions, read_series
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config

DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(n) for n in range(100)]
VALUES = np.random.default_rng(0).normal(50, 10, 100).round(2)


def csv_of(days=DAYS, values=VALUES):
    rows = "".join(f"{day},{value}\n" for day, value in zip(days, values, strict=True))
    return f"date,value\n{rows}"


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "a.csv", csv_of())


def load(path, **keys):
    options = dict(horizon=3) | keys.pop("options", {})
    keys = dict(length=8, eval_share=0.2) | keys
    return series.load(data_config(source="series_files", path=str(path), options=options, **keys))


@pytest.mark.parametrize("center", ["last", "mean", "none"])
def test_windows_are_slices_of_the_series(path, center):
    splits = load(path, options=dict(center=center))
    assert splits.kind == "series" and len(splits.train) == 60 - 8 - 3 + 1
    for n in (0, 17, len(splits.train) - 1):
        window, read = splits.train[n], VALUES[n : n + 8]
        offset = {"last": read[-1], "mean": read.mean(), "none": 0}[center]
        np.testing.assert_allclose(window["signal"][:, 0], read - offset, atol=1e-4)
        np.testing.assert_allclose(window["future"], VALUES[n + 8 : n + 11] - offset, atol=1e-4)
        assert window["offset"] == pytest.approx(offset) and window["is_known"].all()
        assert window["name"] == f"after {DAYS[n + 7]}"
    assert window["signal"].dtype == window["future"].dtype == np.float32


def test_no_split_forecasts_a_value_of_another(path):
    forecast = {}
    for split in ("validation", "test"):
        splits = load(path, eval_split=split, options=dict(center="none"))
        for name, windows in (("train", splits.train), (split, splits.evals[split])):
            found = np.concatenate([windows[n]["future"] for n in range(len(windows))])
            forecast[name] = {float(value) for value in found}
    values = [float(value) for value in VALUES.astype(np.float32)]
    assert forecast == {
        "train": set(values[8:60]),
        "validation": set(values[60:80]),
        "test": set(values[80:]),
    }


def test_training_windows_alone_are_measured(path):
    splits = load(path)
    read = np.stack([each["signal"] for each in splits.train])
    mean, std = splits.mean_and_std
    assert mean == (pytest.approx(read.mean(), rel=1e-3),)
    assert std == (pytest.approx(read.std(), rel=1e-3),)


def test_the_digest_is_that_of_the_values_and_the_windows(path):
    before = load(path).digest
    assert load(path).digest == before
    assert load(path, length=9).digest != before
    assert load(path, options=dict(horizon=4)).digest != before
    written(path, csv_of(values=[*VALUES[:-1], 1]))
    assert load(path).digest != before


def test_times_may_be_dates_months_or_numbers(tmp_path):
    months = [f"2024-{n:02d}-01" for n in range(1, 13)]
    for times in (months, [f"2024{n:02d}01" for n in range(1, 13)], [0.5 * n for n in range(12)]):
        path = written(tmp_path / "a.csv", csv_of(times, range(12)))
        assert read_series(path, SeriesOptions()).values.tolist() == list(range(12))


def test_columns_are_chosen_by_name(tmp_path):
    path = written(tmp_path / "a.csv", "low,day,high\n1,2024-01-01,5\n2,2024-01-02,6\n")
    options = dict(column="low", time_column="day")
    assert read_series(path, SeriesOptions(**options)).values.tolist() == [1, 2]


def with_gap(kind):
    """The series without the values 20 and 21: as empty values, or without the rows."""
    if kind == "values":
        return csv_of(values=[*VALUES[:20], "", "NaN", *VALUES[22:]])
    return csv_of([*DAYS[:20], *DAYS[22:]], [*VALUES[:20], *VALUES[22:]])


@pytest.mark.parametrize("kind", ["values", "rows"])
def test_gaps_are_refused_or_repeat_the_value_before_and_are_not_scored(
    kind, tmp_path, monkeypatch
):
    path = written(tmp_path / "a.csv", with_gap(kind))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path} has gaps: 2 of 100 values are missing, up to 2 in a row (after {DAYS[19]}); fill "
        "them in, or set data.options.longest_gap=2 to repeat the value before a gap"
    )
    with pytest.raises(ConfigError, match="has gaps: 2 of 100"):
        load(path, options=dict(longest_gap=1))
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: lines.append(text % args))
    splits = load(path, options=dict(longest_gap=2, center="none"))
    assert len(lines) == 1 and "the value before a gap is repeated, and not scored" in lines[0]
    assert splits.description["missing"] == 2
    window = splits.train[20 - 8 - 1]  # forecasts the values 19, 20 and 21
    np.testing.assert_allclose(window["future"], VALUES[19].repeat(3), atol=1e-4)
    assert window["is_known"].tolist() == [True, False, False]


def test_missing_values_at_both_ends_are_left_out(tmp_path):
    path = written(tmp_path / "a.csv", csv_of(values=["", *VALUES[1:-1], "na"]))
    found = read_series(path, SeriesOptions())
    np.testing.assert_array_equal(found.values, VALUES[1:-1])
    assert found.times[0] == str(DAYS[1])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "a.csv is empty"),
        ("a\n1\n", "has the heading 'a'; a series has a column of times and one of numbers"),
        ("t,x\n1,2\n2,3,4\n", "a.csv:3: 3 columns, but the heading has 2"),
        ("t,x\n1,2\n2,many\n", "a.csv:3: 'many' is not a number"),
        ("t,x\n1,2\n2,inf\n", "a.csv:3: 'inf' is not a finite number"),
        ("t,x\nmonday,2\n", "a.csv:2: the time 'monday' is neither a number nor a date"),
        ("t,x\n2,2\n1,3\n", "a.csv:3: its time is not after that of the line before; sort"),
        ("t,x\n1,2\n1,3\n", "a.csv:3: its time is not after that of the line before; sort"),
        ("t,x\n1,\n2,\n", "a.csv has no number in its column of values"),
        ("t,x\n1,2\n", "a.csv has 1 values; a series needs more"),
        (b"t,x\n\xff,2\n", "a.csv cannot be read as CSV"),
        ("t,x\n" + "".join(f"{n},{n}\n" for n in range(10)), "has 10 values, too few for one"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(content, said, tmp_path):
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (dict(options=dict(column="valu")), "is not a column of"),
        (dict(options=dict(column="date")), "cannot be both time and value"),
        (dict(eval_split="held_out"), "is not one of: validation, test"),
        (dict(options=dict(horizon=30)), "too few for one window of data.length=8 and"),
    ],
)
def test_keys_that_do_not_fit_the_file_are_refused(keys, said, path):
    with pytest.raises(ConfigError) as caught:
        load(path, **keys)
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match="is not a file; give one CSV file"):
        load(path.parent)


def test_the_last_window_of_a_file_is_what_a_forecast_reads(path):
    data = data_config(source="series_files", length=8, options=dict(horizon=3))
    found = series.read(data, path)
    np.testing.assert_allclose(found["signal"][:, 0], VALUES[-8:] - VALUES[-1], atol=1e-4)
    assert found["offset"] == VALUES[-1]
    short = written(path.parent / "short.csv", csv_of(DAYS[:5], VALUES[:5]))
    with pytest.raises(ConfigError, match="has 5 values, and the model reads 8"):
        series.read(data, short)
