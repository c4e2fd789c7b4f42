"""Records of a run that were changed by hand are noticed when a checkpoint is loaded."""

import json
import os
import shutil

import pytest

import train
from checkpointing import loaded_run, run_identity
from checkpointing.checkpoint_manager import saved_steps
from configs import langid
from experiment.schema import ConfigError
from tests.runs import tiny


@pytest.fixture(scope="module")
def config():
    return tiny(langid, 2, data=dict(length=24))


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory, compile_once):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    train.train_and_evaluate(config, workdir)
    return workdir


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edit(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_an_untouched_run_is_loaded(run):
    assert loaded_run.load(run).labels


def test_classes_in_another_order_are_refused(run):
    edit(run / "model.json", lambda record: record["labels"].reverse())
    message = (
        r"model\.json has another value of labels than when the checkpoint of step 2 was saved"
    )
    with pytest.raises(ConfigError, match=message) as refused:
        loaded_run.load(run)
    assert str(refused.value).endswith("restore it")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "position", "none"),
        ("model", "norm_epsilon", 0.1),
        ("task", "label_smoothing", 0.3),
    ],
)
def test_both_records_changed_alike_are_refused(section, key, value, run):
    for name in ("config.json", "model.json"):
        edit(run / name, lambda record: record.get(section, {}).update({key: value}))
    with pytest.raises(ConfigError, match=f"{section}.{key} than when the checkpoint of step 2"):
        loaded_run.load(run)


def test_a_run_is_not_resumed_with_a_config_that_was_changed_by_hand(config, run):
    """Not even if the command agrees with it: the checkpoint knows how it was trained."""
    edit(run / "config.json", lambda record: record["task"].update(label_smoothing=0.3))
    changed = {**config, "steps": 4, "task": {**config["task"], "label_smoothing": 0.3}}
    message = r"config\.json has another value of task\.label_smoothing than when the checkpoint of"
    with pytest.raises(ConfigError, match=message):
        train.train_and_evaluate(changed, run)
    assert list(saved_steps(run)) == [2]


def test_a_run_is_not_resumed_without_its_config(config, run):
    (run / "config.json").unlink()
    other = {**config, "steps": 4, "seed": 5}
    with pytest.raises(
        ConfigError, match=r"has checkpoints but no config\.json, .* restore config"
    ):
        train.train_and_evaluate(other, run)
    assert not (run / "config.json").exists() and list(saved_steps(run)) == [2]


def test_what_a_resumed_run_may_change_is_not_compared(config, run):
    edit(run / "config.json", lambda record: record["optimizer"].update(learning_rate=0.5))
    edit(run / "config.json", lambda record: record["model"].update(remat="full"))
    edit(run / "model.json", lambda record: record["model"].update(remat="full"))
    loaded_run.load(run)
    changed = {**config, "steps": 4, "optimizer": {**config["optimizer"], "learning_rate": 1e-4}}
    train.train_and_evaluate(changed, run)
    assert loaded_run.load(run).step == 4


def test_keys_of_other_versions_are_not_compared(run):
    edit(run / "model.json", lambda record: record["model"].pop("norm_epsilon"))
    edit(run / "config.json", lambda record: record["model"].pop("norm_epsilon"))
    run_identity.refuse_changed(run, run / "checkpoints" / "2")


def test_checkpoints_without_records_are_loaded(run):
    directory = run / "checkpoints" / str(saved_steps(run)[-1])
    (directory / run_identity.FILE).unlink()
    edit(run / "model.json", lambda record: record["labels"].reverse())
    run_identity.refuse_changed(run, directory)  # those of older versions


@pytest.mark.parametrize("name", ["config.json", "model.json"])
@pytest.mark.parametrize("content", ["[]", "3", "{}", '"text"', "[" * 9999, '{"model": 1}', "\0"])
def test_records_that_are_something_else_are_refused_by_name(name, content, config, run):
    (run / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"{name}.*(not a record of a run|cannot be read)"):
        loaded_run.load(run)
    if name == "config.json":
        with pytest.raises(ConfigError, match=r"config\.json.*(not a record|cannot be read)"):
            train.train_and_evaluate({**config, "steps": 4}, run)
    else:  # written again from the data
        train.train_and_evaluate({**config, "steps": 4}, run)
        assert loaded_run.load(run).step == 4


def test_lines_of_metrics_that_are_something_else_are_dropped(config, run):
    path = run / "metrics.jsonl"
    lines = path.read_text()
    path.write_text('[1, 2]\n3\n{"train/loss": 1}\n{"step": "x"}\n' + lines)
    train.train_and_evaluate({**config, "steps": 4}, run)
    assert path.read_text().startswith(lines.splitlines()[0])


@pytest.mark.parametrize("content", ["[]", '{"model.json": 3}', "[" * 9999, "\0"])
def test_a_damaged_identity_is_left_to_the_digests(content, run):
    (run / "checkpoints" / "2" / run_identity.FILE).write_text(content)
    with pytest.raises(ConfigError, match=rf"{run_identity.FILE} has changed since it was written"):
        loaded_run.load(run)


def test_the_base_of_adapters_is_part_of_the_identity(run):
    """origins.json has the scale of the adapters, which no parameter shows."""
    sources = {"base": {"run": "../a", "step": 2, "alpha": 8.0, "params": {}}}
    checkpoint = run / "checkpoints" / "2"
    (run / "origins.json").write_text(json.dumps(sources))
    run_identity.write(run, checkpoint)
    run_identity.refuse_changed(run, checkpoint)
    edit(run / "origins.json", lambda record: record["base"].update(run="../moved"))
    run_identity.refuse_changed(run, checkpoint)
    edit(run / "origins.json", lambda record: record["base"].update(alpha=100.0))
    with pytest.raises(ConfigError, match=r"origins\.json has another value of base\.alpha"):
        run_identity.refuse_changed(run, checkpoint)
    (run / "origins.json").unlink()
    with pytest.raises(ConfigError, match=r"origins\.json is missing, which the run had"):
        run_identity.refuse_changed(run, checkpoint)


def test_a_pipe_in_place_of_a_record_is_refused(run):
    (run / "model.json").unlink()
    os.mkfifo(run / "model.json")
    with pytest.raises(ConfigError, match=r"model\.json is a named pipe"):
        loaded_run.load(run)


def test_a_pipe_in_a_checkpoint_is_refused(run):
    path = run / "checkpoints" / "2" / run_identity.FILE
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=rf"{run_identity.FILE} is a named pipe"):
        loaded_run.load(run)
