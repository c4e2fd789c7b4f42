"""Configs with former keys: read under the current names, or refused with them."""

import re

import pytest

from configs import default
from experiment import command_line, former_keys, sections
from experiment.schema import ConfigError
from tests import scripts

CONFIG = """
from configs import dates

def get_config():
    config = dates.get_config()
    {statement}
    return config
"""


def config_of_the_past(**evaluation):
    """The default config with `evaluation` in place of `eval.metrics`."""
    config = default.get_config().to_dict()
    del config["eval"]["metrics"]
    config["eval"] |= evaluation
    return config


def test_former_and_current_keys_are_equivalent():
    for key in ("metrics", "measures"):
        config = config_of_the_past(**{key: ("bleu", "chrf")})
        assert sections.from_mapping(config).eval.metrics == ("bleu", "chrf")


def test_converting_keys_changes_neither_other_keys_nor_the_argument():
    config = config_of_the_past(measures=("bleu",))
    current = former_keys.with_current_keys(config)
    assert config["eval"]["measures"] == ("bleu",)
    expected = default.get_config().to_dict()
    expected["eval"]["metrics"] = ("bleu",)
    assert current == expected


def test_a_config_with_both_names_is_refused():
    config = config_of_the_past(measures=("bleu",), metrics=())
    with pytest.raises(ConfigError, match=r"eval\.measures is now eval\.metrics"):
        sections.from_mapping(config)


@pytest.mark.parametrize("key", ["eval.metrics", "eval.measures"])
@pytest.mark.parametrize("dashes", ["--", "-"])
def test_a_flag_may_have_the_former_name(monkeypatch, dashes, key):
    monkeypatch.chdir(scripts.ROOT)
    flag = f"{dashes}config.{key}"
    for given in ([f"{flag}=('bleu',)"], [flag, "('bleu',)"]):
        ended = scripts.run("train.py", *given, "--help_keys")
        assert (ended.code, ended.err) == (0, "")
        assert "eval.metrics=('bleu',)  # default: ()" in ended.out.splitlines()
        assert "measures=" not in ended.out


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ('config.eval.measures = ("bleu",)', "eval.measures is now eval.metrics"),
        (
            'config.eval.update(dict(every=3, measures=("bleu",)))',
            "eval.measures is now eval.metrics",
        ),
        (
            "config.data.listops_max_length = 100",
            "data.listops_max_length is now data.options.max_length",
        ),
    ],
)
@pytest.mark.parametrize("more", [[], ["--config.steps=2"]])
def test_a_former_key_in_a_config_file_is_refused_with_the_current_name(
    monkeypatch, tmp_path, statement, problem, more
):
    monkeypatch.chdir(scripts.ROOT)
    (tmp_path / "own.py").write_text(CONFIG.format(statement=statement))
    ended = scripts.run("train.py", f"--config={tmp_path / 'own.py'}", *more)
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")
    assert ended.err == f"{problem}; rename it in the config file\n"


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("config.model.hidden_size = 8", "sets hidden_size, .* Did you mean model.width?"),
        ("config.data.batch_sise = 8", "sets batch_sise, .* Did you mean .*data.batch_size"),
        ("config.zzzz = 8", "sets zzzz, which is not a config key. --help_keys lists all keys."),
    ],
)
def test_an_unknown_key_in_a_config_file_is_one_line(monkeypatch, tmp_path, statement, hint):
    monkeypatch.chdir(scripts.ROOT)
    (tmp_path / "own.py").write_text(CONFIG.format(statement=statement))
    ended = scripts.run("train.py", f"--config={tmp_path / 'own.py'}")
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")
    assert re.search(hint, ended.err) and ended.err.count("\n") == 1


def test_a_former_key_in_an_unlocked_config_is_refused_with_the_current_name(monkeypatch, tmp_path):
    monkeypatch.chdir(scripts.ROOT)
    statement = 'config.unlock(); config.eval.measures = ("bleu",)'
    (tmp_path / "own.py").write_text(CONFIG.format(statement=statement))
    config, workdir = f"--config={tmp_path / 'own.py'}", f"--workdir={tmp_path / 'run'}"
    ended = scripts.run("train.py", config, workdir)
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")
    assert "eval.measures is now eval.metrics" in ended.err
    assert not (tmp_path / "run").exists()
