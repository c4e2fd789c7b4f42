"""Loading a run directory: the right parameters and config, or an error that says why not."""

import dataclasses
import json
import shutil
import sys

import jax
import numpy as np
import pytest

import train
from checkpointing import loaded_run, run_directory, run_identity
from configs import langid
from experiment import sections
from experiment.schema import ConfigError
from input_pipeline.sources.embedded import names
from tests.runs import STEPS, saved, tiny

BEST = dict(best_metric="eval/held_out/loss", best_mode="min")


@pytest.fixture(scope="module")
def run(tmp_path_factory, compile_once):
    """Langid with a moving average: checkpoints at the steps 2 and 4, tokens and labels."""
    workdir = tmp_path_factory.mktemp("langid")
    checkpoint = dict(every=2, keep=9, **BEST)
    config = tiny(langid, data=dict(length=24), checkpoint=checkpoint)
    train.train_and_evaluate(config, workdir)
    return workdir, config


def named(params):
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(params)}


def ema(workdir, step):
    begin = "['rest']['ema']"
    found = saved(workdir, step)
    return {name[len(begin) :]: x for name, x in found.items() if name.startswith(begin)}


def assert_same(params, expected):
    params = named(params)
    assert params.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)


def copy_of(run, tmp_path, **sections):
    """The run somewhere else, with keys of its record changed."""
    shutil.copytree(run[0], tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    record = json.loads(path.read_text())
    for section, values in sections.items():
        record[section].update(values)
    path.write_text(json.dumps(record))
    return tmp_path / "copy"


def refusal(*args, **options):
    with pytest.raises(ConfigError) as refused:
        loaded_run.load(*args, **options)
    (line,) = str(refused.value).splitlines()
    return line


def test_loading_gives_the_trained_model(run):
    workdir, config = run
    model = loaded_run.load(workdir)
    assert model.experiment == sections.from_mapping(config)
    assert model.tokenizer.vocab_size == model.model_config.vocab_size == 362
    assert model.labels == names.load().labels
    assert model.model_config.num_classes == len(model.labels) == 20
    assert (model.step, model.steps) == (STEPS, (STEPS,))


def test_the_moving_average_is_loaded_if_there_is_one(run):
    workdir, _ = run
    newest = loaded_run.load(workdir).params
    assert_same(newest, ema(workdir, 4))
    assert_same(loaded_run.load(workdir, "2").params, ema(workdir, 2))
    kernel = "['classes']['kernel']"
    raw = saved(workdir, 4)[f"['params']{kernel}"]
    assert not np.array_equal(named(newest)[kernel], raw)


def test_checkpoints_are_averaged(run):
    workdir, _ = run
    mean = loaded_run.load(workdir, average=2)
    assert mean.steps == (2, 4)
    first, second = ema(workdir, 2), ema(workdir, 4)
    assert_same(mean.params, {name: (first[name] + second[name]) / 2 for name in first})


def test_the_best_is_the_one_with_the_best_score(run, tmp_path):
    workdir, _ = run
    reports = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    losses = {
        each["step"]: each[BEST["best_metric"]] for each in reports if "train/loss" not in each
    }
    best = min(losses, key=losses.get)
    assert loaded_run.load(workdir, "best").step == best
    worst = copy_of(run, tmp_path, checkpoint=dict(best_mode="max"))
    assert loaded_run.load(worst, "best").step == 6 - best


def test_a_recorded_mesh_that_does_not_fit_the_devices_is_replaced(run, tmp_path):
    elsewhere = copy_of(run, tmp_path, mesh=dict(data=1, fsdp=16))
    model = loaded_run.load(elsewhere)
    assert model.mesh.shape["fsdp"] == 1 and model.mesh.size == jax.device_count()
    config = loaded_run.recorded_config(elsewhere)
    asked_for = {**config, "mesh": {**config["mesh"], "fsdp": 32}}
    assert "mesh.fsdp=32" in refusal(elsewhere, config=asked_for)


def test_keys_newer_than_the_run_take_their_defaults(run, tmp_path):
    older = copy_of(run, tmp_path)
    for name, section in (("config.json", "eval"), ("model.json", "model")):
        record = json.loads((older / name).read_text())
        del record[section]["batch_size" if section == "eval" else "rope_theta"]
        (older / name).write_text(json.dumps(record))
    model = loaded_run.load(older)
    assert model.experiment.eval.batch_size == 256
    assert model.model_config.rope_theta == 10_000.0


def test_classes_that_the_data_lacks_come_last(run):
    model = loaded_run.load(run[0])
    wanted = model.labels[3], model.labels[1]
    found = loaded_run.with_class_order(model, wanted)
    order = [3, 1, 0, 2, *range(4, len(model.labels))]
    assert found.labels == tuple(model.labels[place] for place in order)
    for name, leaf in model.params["classes"].items():
        np.testing.assert_array_equal(found.params["classes"][name], np.asarray(leaf)[..., order])
    assert loaded_run.with_class_order(model, (*wanted, "another")) is model
    # A head may have more outputs than the data had classes.
    fewer = dataclasses.replace(model, labels=model.labels[:5])
    found = loaded_run.with_class_order(fewer, wanted)
    assert found.labels == tuple(model.labels[place] for place in (3, 1, 0, 2, 4))
    for name, leaf in model.params["classes"].items():
        np.testing.assert_array_equal(found.params["classes"][name], np.asarray(leaf)[..., order])


@pytest.mark.parametrize("name", ["model.json", "config.json"])
def test_records_that_contradict_each_other_are_refused(name, run, tmp_path):
    edited = copy_of(run, tmp_path)
    record = json.loads((edited / name).read_text())
    record["model"]["norm_epsilon"] *= 10
    (edited / name).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"contradict each other in model \(norm_epsilon: "):
        loaded_run.load(edited)


def test_a_run_without_its_config_is_not_resumed(run, tmp_path):
    bare = copy_of(run, tmp_path)
    (bare / "config.json").unlink()
    defaults = langid.default.get_config().to_dict()
    with pytest.raises(ConfigError, match=r"checkpoints but no config\.json.*restore"):
        run_directory.as_begun(bare, run[1], defaults)


@pytest.fixture
def edited_on_purpose(monkeypatch):
    """A copy with edited records stands for another run."""
    monkeypatch.setattr(run_identity, "refuse_changed", lambda workdir, checkpoint: None)


@pytest.mark.usefixtures("edited_on_purpose")
def test_defaults_that_have_changed_do_not_change_a_run(run, tmp_path):
    """A run is loaded and resumed with the defaults of the day it started."""
    config = with_changes(run[1], "model", position="sinusoidal")
    older = copy_of(run, tmp_path, model=dict(position="sinusoidal", attention_redraw=1000))
    for name in ("model.json", "config.json"):
        record = json.loads((older / name).read_text())
        del record["model"]["sinusoidal_scale"]
        record["model"] |= dict(position="sinusoidal", attention_redraw=1000)
        if "data" in record:
            record["data"]["image_fit"] = "crop"
        (older / name).write_text(json.dumps(record))
    loaded = loaded_run.load(older)
    assert loaded.model_config.sinusoidal_scale == 1.0
    chosen = langid.get_config(str(older)).model
    assert (chosen.sinusoidal_scale, chosen.position) == (1.0, "sinusoidal")

    defaults = langid.default.get_config().to_dict()
    resumed, line = run_directory.as_begun(older, config, defaults)
    assert line == (
        "as when the run began: model.sinusoidal_scale=1.0, model.attention_redraw=1000, "
        "data.image_fit=crop"
    )
    assert resumed["model"]["attention_redraw"] == 1000
    assert sections.from_mapping(resumed).data.image_fit == "crop"
    digests = {name: record[name] for name in run_directory.DIGESTS}
    record = {**resumed, **digests}
    assert run_directory.record_config(older, record, resuming=True, defaults=defaults) == []
    # What is recorded now is found again; and what was asked for otherwise is not overruled.
    assert run_directory.as_begun(older, resumed, defaults) == (resumed, "")
    asked = with_changes(config, "model", sinusoidal_scale=0.5, attention_redraw=7)
    asked = with_changes(asked, "data", image_fit="stretch")
    assert run_directory.as_begun(older, asked, defaults) == (asked, "")
    # A run of today is left alone.
    assert run_directory.as_begun(run[0], run[1], defaults) == (run[1], "")


def test_retired_keys_of_a_run_are_ignored(run, tmp_path):
    older = copy_of(run, tmp_path)
    record = json.loads((older / "config.json").read_text())
    record["checkpoint"]["wait"] = True
    (older / "config.json").write_text(json.dumps(record))
    assert loaded_run.load(older).experiment.checkpoint.overlap == 0


def with_changes(config, section, **values):
    return {**config, section: {**config[section], **values}}


def test_data_and_evaluation_may_be_changed_and_hardly_anything_else(run):
    workdir, _ = run
    config = loaded_run.recorded_config(workdir)
    batches = with_changes(config, "eval", batches=3)
    assert loaded_run.changes(config, batches) == {"eval.batches": 3}
    assert loaded_run.load(workdir, config=batches).experiment.eval.batches == 3
    for section, change in [
        ("model", dict(width=32)),
        ("task", dict(objective="masked_lm")),
        ("optimizer", dict(ema_decay=0.0)),
        ("data", dict(tokenizer="bpe")),
        ("data", dict(lowercase=True)),
    ]:
        (key,) = change
        assert f"{section}.{key} cannot be changed" in refusal(
            workdir, config=with_changes(config, section, **change)
        )


def test_rope_scaling_may_be_changed_when_loading(run):
    workdir, _ = run
    config = loaded_run.recorded_config(workdir)
    plain = loaded_run.load(workdir)
    reach = dict(rope_scaling="linear", rope_factor=4.0, max_length=4096)
    model = loaded_run.load(workdir, config=with_changes(config, "model", **reach))
    assert model.model_config == dataclasses.replace(plain.model_config, **reach)
    assert model.model.config == model.model_config
    assert_same(model.params, named(plain.params))
    alone = with_changes(config, "model", rope_factor=4.0)
    assert "model.rope_factor=4 does nothing with" in refusal(workdir, config=alone)
    theta = with_changes(config, "model", rope_theta=500.0)
    assert "model.rope_theta cannot be changed" in refusal(workdir, config=theta)


def test_attention_may_be_of_another_kind(run):
    """A kind with the same parameters, or the same kind with a wider window."""
    workdir, _ = run
    config = loaded_run.recorded_config(workdir)
    plain = loaded_run.load(workdir)
    far = dict(attention="local,flash", attention_window=1000)
    model = loaded_run.load(workdir, config=with_changes(config, "model", **far))
    assert model.model_config == dataclasses.replace(plain.model_config, **far)
    assert_same(model.params, named(plain.params))
    longformer = with_changes(config, "model", attention="longformer")
    assert "cannot be changed to or from longformer" in refusal(workdir, config=longformer)


@pytest.mark.usefixtures("edited_on_purpose")
def test_matmul_precision_may_be_changed_when_loading(run, tmp_path, monkeypatch):
    """A float model generates in 8 bits, and an 8-bit model in floats without the library."""
    workdir, _ = run
    config = loaded_run.recorded_config(workdir)
    model = loaded_run.load(workdir, config=with_changes(config, "model", matmul="int8"))
    assert model.model.config.matmul == "int8"
    quantized = copy_of(run, tmp_path, model=dict(matmul="int8"))
    path = quantized / "model.json"
    record = json.loads(path.read_text())
    record["model"]["matmul"] = "int8"
    path.write_text(json.dumps(record))
    monkeypatch.setitem(sys.modules, "qwix", None)
    assert "pip install" in refusal(quantized)
    config = loaded_run.recorded_config(quantized)
    model = loaded_run.load(quantized, config=with_changes(config, "model", matmul="float"))
    assert model.model.config.matmul == "float"
    assert_same(model.params, named(loaded_run.load(workdir).params))


def test_a_table_of_positions_keeps_its_length(run, tmp_path):
    learned = copy_of(run, tmp_path, model=dict(position="learned"))
    path = learned / "model.json"
    record = json.loads(path.read_text())
    record["model"]["position"] = "learned"
    path.write_text(json.dumps(record))
    longer = with_changes(loaded_run.recorded_config(learned), "model", max_length=4096)
    assert "the table of model.position=learned has 512 rows" in refusal(learned, config=longer)


def test_missing_runs_and_checkpoints_are_refused(run, tmp_path):
    workdir, _ = run
    assert "config.json cannot be read (No such file or directory)" in refusal(tmp_path / "none")
    for step in ("3", "-2", "newest"):
        assert "is not a checkpoint of" in refusal(workdir, step)
        assert "choose best or one of: 2, 4" in refusal(workdir, step)
    assert "average=3 must be 1 to 2" in refusal(workdir, average=3)
    assert "average=2 must be 1 to 1, " in refusal(workdir, "2", average=2)
    assert "average=0 must be 1 to 2" in refusal(workdir, average=0)

    broken = copy_of(run, tmp_path, checkpoint=dict(best_metric="", best_mode="max"))
    assert "; choose one of: 2, 4" in refusal(broken, "3")
    assert "step=best needs a run with checkpoint.best_metric" in refusal(broken, "best")
    (broken / "model.json").write_text("{")
    assert "model.json cannot be read (not valid JSON); run train.py" in refusal(broken)
    shutil.rmtree(broken / "checkpoints")
    shutil.copy(workdir / "model.json", broken)
    assert "has no checkpoint; train it first" in refusal(broken)


def test_a_run_that_was_never_scored_has_no_best(run, tmp_path):
    unscored = copy_of(run, tmp_path, checkpoint=dict(best_metric="eval/held_out/accuracy"))
    assert "has been scored by eval/held_out/accuracy; choose one of: 2, 4" in refusal(
        unscored, "best"
    )
