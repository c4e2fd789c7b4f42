"""Studies: what a file may say, and what is refused."""

import pytest

from experiment.schema import ConfigError
from sweeps.study import load_study, study_of_grid, with_flags
from tests.scripts import ROOT

STUDY = dict(
    config="configs/digits.py",
    variants={"a": {}, "b": {"model.heads": 2}},
    seeds=(0, 1),
    metrics=("eval/held_out/loss",),
)


def write(tmp_path, **changes):
    path = tmp_path / "one.py"
    path.write_text(f"def get_study():\n    return { ({**STUDY, **changes})!r}\n")
    return str(path)


def test_a_study_is_named_by_its_file_and_compares_with_its_first_variant(tmp_path):
    study = load_study(write(tmp_path))
    assert (study.name, study.compared_with, study.seeds) == ("one", "a", (0, 1))
    assert load_study(write(tmp_path, baseline="b")).compared_with == "b"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(varaints={}), "varaints is not a config key. Did you mean 'variants'?"),
        (dict(variants={}), "variants is empty"),
        (dict(baseline="c"), "baseline=c is not a variant"),
        (dict(variants={"a/b": {}}), "must be named like a file, such as 'a_b'"),
        (dict(variants={"a": 3}), "must be a dict of config keys"),
        (dict(variants={"a": {"seed": 1}}), "sets the seed"),
        (dict(overrides={"seed": 1}), "overrides sets seed"),
        (dict(seeds=(1, 1)), "the seed 1 is there twice"),
        (dict(seeds=(-1,)), "must be at least 0"),
        (dict(match="size"), "'size' is not one of"),
        (dict(plots=({"kind": "bar"},)), "must be bars or curves or lines or profile"),
        (dict(plots=({"kind": "lines"},)), "lines needs x"),
        (dict(plots=({"kind": "bars", "x": "model.width"},)), "bars has no x"),
        (dict(plots=({"kind": "bars", "metric": "eval/held_out/los"},)), "Did you mean"),
        (dict(plots=({"kind": "profile"},)), "profile needs a metric with a *"),
        (dict(plots=({"kind": "profile", "metric": "eval/held_out/loss"},)), "with a *"),
        (dict(plots=({"kind": "profile", "metric": "eval/n_*/loss"},)), "is not in metrics"),
        (dict(plots=({"kind": "profile", "x": "seed"},), metrics=("a/*",)), "profile has no x"),
        (dict(plots=({"kind": "bars", "metric": "a/*"},), metrics=("a/*",)), "kind profile"),
        (dict(metrics=("eval/*/n_*",)), "more than one *"),
        (dict(probes=("latenzy",)), "there is no latenzy. Did you mean 'latency'? There are: "),
        (dict(metrics=("probe/latency/batch_1",)), "needs latency among the study's probes"),
        (
            dict(metrics=("probe/latency/batch",), probes=("latency",)),
            "probe/latency/batch is not measured; the probe gives probe/latency/batch_*",
        ),
    ],
)
def test_a_wrong_field_is_refused(tmp_path, changes, reason):
    with pytest.raises(ConfigError) as error:
        load_study(write(tmp_path, **changes))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "no get_study"),
        ("get_study = lambda: 3", "must return a dict"),
        ("1 +", "invalid"),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, text, reason):
    (tmp_path / "s.py").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_study(str(tmp_path / "s.py"))


def test_a_missing_file_lists_those_that_are_there():
    with pytest.raises(ConfigError, match=r"There are: .*studies/positions_digits\.py"):
        load_study("studies/nothing.py")


def test_flags_take_the_place_of_fields(tmp_path):
    study = with_flags(
        load_study(write(tmp_path)), metrics=["train/loss"], baseline="b", match="flops"
    )
    assert (study.metrics, study.baseline, study.match) == (("train/loss",), "b", "flops")
    with pytest.raises(ConfigError, match="baseline=c is not a variant"):
        with_flags(study, baseline="c")


def test_a_grid_is_a_study():
    study = study_of_grid(
        "configs/dates.py:t5_style", "seed=3..4;model.heads=2,4", baseline="heads=4"
    )
    assert (study.name, study.seeds, study.compared_with) == ("dates-t5_style", (3, 4), "heads=4")
    with pytest.raises(ConfigError, match="seed=x is not a whole number"):
        study_of_grid("configs/dates.py", "seed=x")


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("[!_]*.py")), ids=lambda p: p.stem)
def test_every_study_here_is_valid(path):
    from sweeps.cells import make_cells, validate

    study = load_study(str(path))
    cells = make_cells(study, {})
    assert len(validate(cells)) == len(study.variants) * max(1, len(study.seeds))
    assert study.claim
