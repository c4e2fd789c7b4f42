"""Names from other codebases are answered with our keys, in flags, configs and overrides."""

import pytest

from configs import default
from experiment import command_line, help_text, other_names, sections
from experiment.schema import ConfigError
from tests import scripts

# Names that people are known to try, with the key that each must lead to.
TRIED = {
    "d_model": "model.width",
    "emb_dim": "model.width",
    "hidden_size": "model.width",
    "n_embd": "model.width",
    "num_layers": "model.encoder_layers",
    "n_layer": "model.decoder_layers",
    "depth": "model.encoder_layers",
    "num_hidden_layers": "model.decoder_layers",
    "num_heads": "model.heads",
    "n_head": "model.heads",
    "num_attention_heads": "model.heads",
    "head_dim": "model.head_size",
    "mlp_dim": "model.feed_forward",
    "d_ff": "model.feed_forward",
    "intermediate_size": "model.feed_forward",
    "max_target_length": "data.length",
    "seq_len": "data.length",
    "max_seq_length": "data.length",
    "num_train_steps": "steps",
    "max_steps": "steps",
    "total_steps": "steps",
    "lr": "optimizer.learning_rate",
    "dropout_rate": "model.dropout_residual",
    "weight_tying": "model.tie_output",
}


def test_other_names_map_to_existing_keys_and_are_no_keys():
    known = help_text.key_names()
    for name, keys in other_names.KEYS.items():
        assert set(keys) <= set(known), name
    units = {key for key, _ in other_names.OTHER_UNITS.values()}
    assert units <= set(known)
    ours = {key.rpartition(".")[2] for key in known}
    theirs = other_names.KEYS.keys() | other_names.OTHER_UNITS.keys()
    assert ours & theirs == {"data"}  # --data is a path; mesh.data is an axis
    assert not other_names.KEYS.keys() & other_names.OTHER_UNITS.keys()


def test_no_name_stands_for_two_keys():
    names = [name for each in other_names._NAMES_OF_KEYS.values() for name in each.split()]
    assert sorted(names) == sorted(other_names.KEYS)


@pytest.mark.parametrize(("name", "key"), TRIED.items())
def test_names_from_other_libraries_map_to_our_keys(name, key):
    assert key in other_names.KEYS[name]


@pytest.mark.parametrize("name", other_names.KEYS)
def test_every_name_is_answered_as_a_flag_and_as_an_override(name):
    keys = other_names.KEYS[name]
    meant = " or ".join(f"--config.{key}=7" for key in keys)
    said = help_text.unknown_flag(name, "7", ["workdir"], has_config=True)
    assert said == f"--{name} is not a flag. Did you mean {meant}?"
    for section in ("", "model."):
        if f"{section}{name}" in default.get_config():  # `--config.optimizer=...` is a section
            continue
        argv = ["train.py", f"--config.{section}{name}=7"]
        meant = " or ".join(f"--config.{key}" for key in keys)
        said = command_line._explain(argv, AttributeError(name))
        assert said == f"{section}{name} is not a config key. Did you mean {meant}?"


@pytest.mark.parametrize("name", other_names.KEYS)
def test_every_name_is_answered_as_a_key_of_a_config(name):
    config = default.get_config().to_dict()
    config["model"][name] = 7
    with pytest.raises(ConfigError) as refusal:
        sections.from_mapping(config)
    meant = [key.removeprefix("model.") for key in other_names.KEYS[name]]
    listed = " or ".join(map(repr, meant))
    assert refusal.value.problems == [f"model.{name} is not a config key. Did you mean {listed}?"]


def test_a_renamed_key_is_not_also_reported_as_missing():
    config = default.get_config().to_dict()
    config["model"]["d_model"] = config["model"].pop("width")
    with pytest.raises(ConfigError) as refusal:
        sections.from_mapping(config)
    assert refusal.value.problems == ["model.d_model is not a config key. Did you mean 'width'?"]


@pytest.mark.parametrize("name", other_names.OTHER_UNITS)
def test_names_with_another_unit_are_answered_with_ours(name):
    key, unit = other_names.OTHER_UNITS[name]
    said = help_text.unknown_flag(name, "7", [], has_config=True)
    assert said == f"--{name} is not a flag; --config.{key} {unit}."
    said = command_line._explain(["train.py", f"--config.{name}=7"], AttributeError(name))
    assert said == f"{name} is not a config key; --config.{key} {unit}."
    with pytest.raises(ConfigError, match=f"{name} is not a config key; {key} {unit}"):
        sections.from_mapping({**default.get_config().to_dict(), name: 7})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--config.model.hidden_size=8", "model.hidden_size is not a config key. Did you mean --"),
        ("--config.per_device_batch_size=8", "--config.data.batch_size counts the rows of all"),
        ("--num-layers=8", "Did you mean --config.model.encoder_layers=8 or --config.model.deco"),
    ],
)
def test_train_py_suggests_our_key(monkeypatch, command, said):
    monkeypatch.chdir(scripts.ROOT)
    ended = scripts.run("train.py", command)
    assert said in ended.err and len(ended.err.splitlines()) == 1
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")
