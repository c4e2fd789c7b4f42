"""Configs with former keys are read under the current names, with a warning if a file has them."""

import dataclasses
import re
import warnings

import pytest

from configs import default
from configs.renamed_keys import FORMER_KEYS, FormerKeyWarning
from experiment import command_line, former_keys, sections
from experiment.schema import ConfigError
from input_pipeline.sources.embedded.listops import ListOpsOptions
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


BLEU = "eval.metrics=('bleu',)  # default: ()"
BOUNDS = "data.options={'depth': 3, 'max_length': 100}  # default: {}"


@pytest.mark.parametrize(
    ("statement", "keys", "expected"),
    [
        ('config.eval.measures = ("bleu",)', ["eval.measures is now eval.metrics"], BLEU),
        ('config.eval["measures"] = ("bleu",)', ["eval.measures is now eval.metrics"], BLEU),
        (
            'config.eval.update(dict(every=3, measures=("bleu",)))',
            ["eval.measures is now eval.metrics"],
            BLEU,
        ),
        (
            'config.unlock(); config.eval.measures = ("bleu",)',
            ["eval.measures is now eval.metrics"],
            BLEU,
        ),
        (
            'config.eval = dict(config.eval) ; config.eval.measures = ("bleu",)',
            ["eval.measures is now eval.metrics"],
            BLEU,
        ),
        (
            "config.data.listops_max_length = 100; "
            "config.data.update(dict(listops_depth=config.data.listops_max_length - 97))",
            [
                "data.listops_max_length is now data.options.max_length",
                "data.listops_depth is now data.options.depth",
            ],
            BOUNDS,
        ),
    ],
)
@pytest.mark.parametrize("more", [[], ["--config.steps=2"]])
def test_a_former_key_in_a_config_file_is_read_with_a_warning(
    monkeypatch, tmp_path, statement, keys, expected, more
):
    """One line for each former key; the config has only current keys."""
    monkeypatch.chdir(scripts.ROOT)
    (tmp_path / "own.py").write_text(CONFIG.format(statement=statement))
    with warnings.catch_warnings():
        warnings.simplefilter("default", FormerKeyWarning)  # as in a process of its own
        config = f"--config={tmp_path / 'own.py'}"
        ended = scripts.run("train.py", config, *more, "--help_keys")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        f"warning: {key}; rename it in the config file" for key in keys
    ]
    listed = ended.out.splitlines()
    assert expected in listed
    assert not any("measures=" in line or "listops_" in line for line in listed)


def test_a_flag_changes_what_a_file_sets_by_the_former_name(monkeypatch, tmp_path):
    monkeypatch.chdir(scripts.ROOT)
    statement = "config.data.update(dict(source='listops', length=32, listops_depth=3))"
    (tmp_path / "own.py").write_text(CONFIG.format(statement=statement))
    for key in ("data.listops_depth", "data.options.depth"):
        with pytest.warns(FormerKeyWarning, match=r"data\.listops_depth is now"):
            config = command_line.parse_config(str(tmp_path / "own.py"), {key: "4"})
        config["task"]["objective"] = "classify_text"
        config["model"]["family"] = "encoder"
        options = dict(depth=4, arguments=3, min_length=4, max_length=30)
        assert sections.from_mapping(config).data.options == options


def test_former_keys_have_the_options_of_listops():
    options = [field.name for field in dataclasses.fields(ListOpsOptions)]
    assert {f"listops_{name}": name for name in options} == former_keys.LISTOPS_KEYS


def test_a_default_config_has_current_keys_only():
    config = default.get_config()
    for former in FORMER_KEYS:
        section, key = former.split(".")
        assert key not in config[section] and key not in config.to_dict()[section]


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
