"""sweep.json: joining a sweep, adding to it, and what is refused."""

import dataclasses

import pytest

from experiment.schema import ConfigError
from sweeps import sweep_record
from sweeps.sweep_record import SweepRecord, VariantRecord, join, read, refuse_other_sweep


def variant(**changes):
    return VariantRecord(
        **{
            **dict(overrides={"model.heads": "2"}, steps=5, parameters=10, step_flops=3),
            **dict(data_key="k", sizes={"model.width": 8}, matched="width 16 -> 8"),
            **changes,
        }
    )


RECORD = SweepRecord(
    name="s",
    claim="",
    config="configs/digits.py",
    common={"steps": "5"},
    match="",
    baseline="a",
    metrics=("eval/held_out/loss",),
    known_metrics=("eval/held_out/loss", "eval/held_out/accuracy"),
    plots=({"kind": "bars"},),
    search={},
    variants={"a": variant()},
    cells={"a-seed0": ("a", 0)},
)
ASKED = dict(
    config=RECORD.config, common=RECORD.common, match="", search={}, baseline="a",
    variants={"a": {"model.heads": "2"}},
)  # fmt: skip


def test_what_is_written_is_read_back(tmp_path):
    assert read(tmp_path) is None
    assert join(tmp_path, RECORD) == RECORD == read(tmp_path)
    assert RECORD.flops("a") == 15


def test_cells_are_added_and_what_was_chosen_before_stays(tmp_path):
    join(tmp_path, RECORD)
    other = dataclasses.replace(
        RECORD,
        variants={"b": variant(steps=7), "a": variant(sizes={"model.width": 99})},
        cells={"b-seed0": ("b", 0), "a-seed1": ("a", 1)},
        metrics=("eval/held_out/accuracy",),
    )
    joined = join(tmp_path, other)
    assert joined.variants == {"a": variant(), "b": variant(steps=7)}
    assert list(joined.cells) == ["a-seed0", "b-seed0", "a-seed1"]
    assert joined.metrics == ("eval/held_out/accuracy",)
    assert read(tmp_path) == joined


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(config="configs/dates.py"), "config: configs/digits.py -> configs/dates.py"),
        (dict(common={"steps": "6"}), "steps: 5 -> 6"),
        (dict(common={"steps": "5", "log_every": "1"}), "log_every: none -> 1"),
        (dict(match="flops"), "match: none -> flops"),
        (dict(search={"ranges": "x"}), "ranges: none -> x"),
        (dict(variants={"a": {"model.heads": "4"}}), "variant a: model.heads=2 -> model.heads=4"),
        (dict(variants={"a": {}}), "variant a: model.heads=2 -> none"),
    ],
)
def test_what_cells_share_may_not_change(tmp_path, changes, reason):
    with pytest.raises(ConfigError, match="holds another sweep") as error:
        refuse_other_sweep(tmp_path, RECORD, {**ASKED, **changes})
    assert reason in str(error.value)


def test_variants_may_be_added_and_left_out(tmp_path):
    refuse_other_sweep(tmp_path, RECORD, ASKED)
    refuse_other_sweep(tmp_path, RECORD, {**ASKED, "variants": {"b": {}}, "baseline": "b"})


def test_with_match_the_baseline_stays(tmp_path):
    record = dataclasses.replace(RECORD, match="flops")
    with pytest.raises(ConfigError, match="baseline: a -> b"):
        refuse_other_sweep(tmp_path, record, {**ASKED, "match": "flops", "baseline": "b"})


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds other files \(notes.txt\)"):
        read(tmp_path)
    (tmp_path / sweep_record.NAME).write_text("{")
    with pytest.raises(ConfigError, match=r"sweep.json cannot be read"):
        read(tmp_path)
