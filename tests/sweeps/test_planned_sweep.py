"""Plans: bad input is refused before anything starts, and recorded choices are used again."""

import dataclasses

import pytest

from experiment.schema import ConfigError
from sweeps import planned_sweep, sweep_record
from sweeps.planned_sweep import plan_sweep
from sweeps.study import Study

STUDY = Study(
    name="s",
    config="configs/digits.py",
    variants={"relu": {}, "swiglu": {"model.activation": "swiglu"}},
    overrides={"model.width": 16, "model.feed_forward": 32, "model.encoder_layers": 1},
    seeds=(0, 1),
)


def planned_and_joined(sweep, study, common=(), **options):
    options = {"note": lambda line: None, **options}
    planned = plan_sweep(sweep, study, dict(common), **options)
    return dataclasses.replace(planned, record=sweep_record.join(sweep, planned.record))


def test_the_main_score_is_the_default_metric(tmp_path):
    planned = planned_and_joined(tmp_path, STUDY)
    assert planned.record.metrics == ("eval/held_out/accuracy",)
    assert planned.record.baseline == "relu"
    assert planned.steps() == dict.fromkeys(planned.record.cells, 2000)
    relu, swiglu = planned.record.variants.values()
    assert relu.data_key == swiglu.data_key and relu.parameters < swiglu.parameters


def test_data_decides_whether_seeds_make_pairs(tmp_path):
    variants = {"a": {}, "b": {"data.batch_size": 32}, "c": {"data.prefetch": 1}}
    record = planned_and_joined(tmp_path, dataclasses.replace(STUDY, variants=variants)).record
    a, b, c = (each.data_key for each in record.variants.values())
    assert a == c != b


@pytest.mark.parametrize(
    ("changes", "common", "reason"),
    [
        (dict(metrics=("eval/held_out/acc",)), {}, "Did you mean 'eval/held_out/accuracy'"),
        (dict(metrics=("eval/test/loss",)), {}, "eval/test/loss is not measured"),
        (dict(metrics=("eval/held_out_*/loss",)), {}, "eval/held_out_*/loss is not measured"),
        ({}, {"model.widht": "3"}, "model.widht is not a config key. Did you mean 'width'?"),
        (dict(variants={"a": {"model.heads": "x"}}), {}, "model.heads takes a whole number"),
        (dict(config="configs/digit.py"), {}, "Did you mean --config="),
        (dict(match="flops", variants={"a": {}, "b": {"model.width": 8}}), {}, "--match chooses"),
        (dict(match="time"), {}, "needs to run a few steps"),
        (
            dict(probes=("score_by_length",)),
            {},
            "the probe score_by_length fits no variant: task.objective=classify_images on digits",
        ),
    ],
)
def test_bad_input_is_refused(tmp_path, changes, common, reason):
    with pytest.raises(ConfigError) as error:
        plan_sweep(tmp_path, dataclasses.replace(STUDY, **changes), common)
    assert reason in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_variant_goes_without_a_probe_that_does_not_fit_it(tmp_path):
    variants = {"one": {"model.heads": 1}, "two": {"model.heads": 2}}
    probes = ("head_similarity", "gradient_by_layer")
    metrics = ("eval/held_out/loss", "probe/head_similarity/divergence/layer_*")
    study = dataclasses.replace(STUDY, variants=variants, probes=probes, metrics=metrics)
    notes = []
    planned = planned_and_joined(tmp_path, study, note=notes.append)
    assert notes == ["one: no probe/head_similarity: model.heads=1 has no pairs"]
    assert planned.record == sweep_record.read(tmp_path) and planned.record.metrics == metrics
    assert planned.probes()["one-seed0"] == planned.probes()["one-seed1"] == probes[1:]
    assert planned.probes()["two-seed0"] == probes
    # A later command may ask for others; variants that it does not name keep theirs.
    later = dataclasses.replace(study, variants={"two": variants["two"]}, probes=())
    later = dataclasses.replace(later, metrics=metrics[:1])
    record = planned_and_joined(tmp_path, later).record
    assert record.probes == {"one": probes[1:], "two": ()}


def test_sizes_are_chosen_once(tmp_path, monkeypatch):
    """A step's time is never measured twice the same; the second plan must not measure again."""
    study = dataclasses.replace(STUDY, match="time")
    times = iter([1.0, 2.0, 1.5, 1.01])
    first = planned_and_joined(tmp_path, study, measure=lambda cell: next(times))
    sizes = first.record.variants["swiglu"].sizes
    assert sizes["model.width"] < 16
    monkeypatch.setattr(planned_sweep, "SizeCounter", lambda: None)  # nor open the data
    second = planned_and_joined(tmp_path, study, measure=None)
    assert second.record == first.record and second.cells == first.cells
    width = str(sizes["model.width"])
    assert second.cells[-1].overrides["model.width"] == width


def test_variants_can_be_added_and_keep_the_baseline(tmp_path):
    planned_and_joined(tmp_path, STUDY)
    more = dataclasses.replace(STUDY, variants={"silu": {"model.activation": "silu"}}, seeds=(0, 5))
    record = planned_and_joined(tmp_path, more).record
    assert list(record.variants) == ["relu", "swiglu", "silu"] and record.baseline == "relu"
    assert list(record.cells)[-2:] == ["silu-seed0", "silu-seed5"]


def test_common_flags_may_not_change(tmp_path):
    planned_and_joined(tmp_path, STUDY)
    with pytest.raises(ConfigError, match=r"holds another sweep \(log_every: none -> 3\)"):
        planned_and_joined(tmp_path, STUDY, {"log_every": 3})
