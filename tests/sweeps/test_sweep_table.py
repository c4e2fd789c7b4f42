"""The table of a sweep: rows by hand, as text, CSV and JSON."""

import csv
import dataclasses
import io
import json

import pytest

from sweeps import sweep_table
from sweeps.cell_results import NOT_BEGUN, CellResult
from tests.sweeps.test_sweep_record import RECORD, variant

LOSS = "eval/held_out/loss"
THREE = dataclasses.replace(
    RECORD,
    claim="b is better",
    variants={
        "a": variant(),
        "b": variant(parameters=11, matched="", sizes={}),
        "other_data": variant(data_key="other", matched="", sizes={}),
    },
    cells={
        f"{name}-seed{seed}": (name, seed)
        for name in ("a", "b", "other_data")
        for seed in (0, 1, 2)
    },
)
VALUES = {"a": (1.0, 2.0, 3.0), "b": (0.9, 1.7, 2.5), "other_data": (1.5, 2.5)}


def results(values=VALUES, **changes):
    found = {}
    for name, scores in values.items():
        for seed, score in enumerate(scores):
            found[f"{name}-seed{seed}"] = dataclasses.replace(
                CellResult(5, True, True, {LOSS: score}, 10.0 + seed, None, "finished"), **changes
            )
    return {cell: found.get(cell, NOT_BEGUN) for cell in THREE.cells}


def test_rows_by_hand():
    a, b, other = sweep_table.make_rows(THREE, results())
    assert (a.n, a.planned, a.seconds, a.parameters, a.flops) == (3, 3, 11.0, 10, 15)
    assert (a.scores[LOSS].mean, a.scores[LOSS].deviation) == (2.0, 1.0)
    assert a.scores[LOSS].difference is None
    assert b.scores[LOSS].difference.test == "paired t"
    assert b.scores[LOSS].difference.mean == pytest.approx(-0.3)
    assert (other.n, other.planned) == (2, 3)
    # Other data comes in another order: seeds make no pairs.
    assert other.scores[LOSS].difference.test == "Welch t"


def test_parameters_are_those_that_the_runs_counted():
    rows = sweep_table.make_rows(THREE, results(parameters=77))
    assert [row.parameters for row in rows] == [77, 77, 77]


def test_the_text_has_no_ranking_and_says_what_is_missing():
    rows = sweep_table.make_rows(THREE, results({**VALUES, "b": (0.9,)}))
    text = sweep_table.full_text(THREE, rows)
    lines = text.splitlines()
    assert lines[0] == "claim: b is better"
    assert [line.split()[0] for line in lines[4:7]] == ["a", "b", "other_data"]
    assert "1 of 3" in lines[5] and "2 of 3" in lines[6]
    assert "n=1: no interval" in text
    assert "a: width 16 -> 8" in text


def by_distance(values=VALUES):
    """Results with a metric for each of three distances, of which `b` lacks the last."""
    found = results(values)
    for name, result in found.items():
        own = [8, 16] if name.startswith("b") else [8, 16, 128]
        more = {f"d_{n}": score / n for n in own for score in result.values.values()}
        found[name] = dataclasses.replace(result, values={**result.values, **more})
    return found


PROFILE = dataclasses.replace(THREE, metrics=("d_*", LOSS))


def test_patterns_are_compact_as_text_and_full_elsewhere(tmp_path):
    rows = sweep_table.make_rows(PROFILE, by_distance())
    assert list(rows[0].scores) == ["d_8", "d_16", "d_128", LOSS]
    assert rows[0].scores["d_16"].mean == 2.0 / 16
    text = sweep_table.full_text(PROFILE, rows)
    block = text[text.index("d_*\n") :].splitlines()[1:6]
    assert block[0].split() == ["variant", "8", "16", "128"]
    assert block[2].split() == ["a", "0.25", "0.125", "0.01562"]
    assert block[3].split()[-1] == sweep_table.NONE
    assert text.count("difference from a") == 1 and "d_8" not in text
    csv_lines = csv.DictReader(io.StringIO(sweep_table.csv_text(rows)))
    assert [line["metric"] for line in csv_lines] == 3 * ["d_8", "d_16", "d_128", LOSS]
    found = rows[1].scores["d_8"].difference
    assert found.test == "paired t" and found.mean == pytest.approx(-0.3 / 8)
    missing = rows[1].scores["d_128"]
    assert missing.mean is None and missing.difference.note == "no seeds of both"


def test_nothing_done_yet():
    text = sweep_table.full_text(THREE, sweep_table.make_rows(THREE, results({})))
    assert "0 of 3" in text and "no seeds of both" in text


def test_csv_and_json_have_the_full_numbers(tmp_path):
    rows = sweep_table.make_rows(THREE, results({**VALUES, "a": (1.0, 2.0, float("nan"))}))
    sweep_table.write(tmp_path, THREE, rows)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [line["variant"] for line in lines] == ["a", "b", "other_data"]
    assert float(lines[1]["mean"]) == rows[1].scores[LOSS].mean
    assert lines[1]["note"] == "values that are not finite"
    content = json.loads((tmp_path / "table.json").read_text(), parse_constant=pytest.fail)
    assert content["variants"][0]["scores"][LOSS]["values"]["2"] == "nan"
    assert content["variants"][0]["overrides"] == {"model.heads": "2", "model.width": 8}
    assert (tmp_path / "table.txt").read_text() == sweep_table.full_text(THREE, rows) + "\n"
