"""--help, --help_keys, and the errors for unknown flags and configs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs import dates, default
from experiment import command_line, help_text
from tests import scripts

SCRIPTS = ["train.py", "evaluate.py", "generate.py", "convert.py", "prepare.py", "plan.py"]
TAKES_A_FILE = ["train.py", "prepare.py", "plan.py"]
HAS_KEYS = [*TAKES_A_FILE, "evaluate.py"]


def defined_flags(script):
    """The names of the flags that a script defines, read from its source."""
    source = (scripts.ROOT / script).read_text()
    return re.findall(r"flags\.DEFINE_\w+\(\s*\"(\w+)\"", source)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("asked", [["--help"], ["-h"], ["--config=nope.py", "--steps=3", "--help"]])
def test_help_says_what_the_script_does_and_takes(monkeypatch, script, asked):
    monkeypatch.chdir(scripts.ROOT)
    ended = scripts.run(script, *asked)
    assert (ended.code, ended.err) == (0, "")
    doc = ast.get_docstring(ast.parse((scripts.ROOT / script).read_text()))
    assert ended.out.startswith(doc.splitlines()[0])
    assert defined_flags(script)
    for name in defined_flags(script):
        assert re.search(rf"^  --{name}\b", ended.out, re.MULTILINE)
    assert all(len(line) <= help_text.WIDTH for line in ended.out.splitlines())
    assert ("--config.KEY=VALUE" in ended.out) == (script in HAS_KEYS)
    assert ("--config=FILE" in ended.out) == (script in TAKES_A_FILE)


def test_help_lists_every_config_and_every_key(monkeypatch):
    monkeypatch.chdir(scripts.ROOT)
    out = scripts.run("train.py", "--help").out
    for path in (scripts.ROOT / "configs").glob("*.py"):
        if path.stem not in help_text.NO_CONFIGS:
            assert f"  configs/{path.name} " in out
    assert "Handwritten digits, 8x8 pixels, with a small ViT." in out
    for section, keys in default.get_config().to_dict().items():
        names = [section] if not isinstance(keys, dict) else [f"{section}.", *keys]
        for name in names:
            assert re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", out.partition("Keys (")[2])


def test_help_goes_into_a_pipe_that_is_closed_early():
    command = f"{sys.executable} convert.py --help | head -n 1"
    ended = subprocess.run(
        command, shell=True, cwd=scripts.ROOT, capture_output=True, text=True, check=True
    )
    assert (ended.stderr, len(ended.stdout.splitlines())) == ("", 1)


def test_every_key_is_explained():
    """By a comment on its line, or on the line above it."""
    lines = help_text.key_listing(default.get_config().to_dict()).splitlines()
    places = {
        line.partition("=")[0]: n for n, line in enumerate(lines) if line[:1] not in ("#", "")
    }
    assert sorted(places) == sorted(help_text.key_names())
    beside = {"mesh.fsdp", "mesh.sequence", "mesh.tensor"}  # explained together, above mesh.data
    unexplained = {
        key
        for key, number in places.items()
        if "  # " not in lines[number] and not lines[number - 1].startswith("# ")
    }
    assert unexplained == beside


def test_every_key_is_listed_once_with_its_value_and_comment(monkeypatch):
    monkeypatch.chdir(scripts.ROOT)
    ended = scripts.run(
        "train.py", "--config=configs/dates.py", "--config.model.width=96", "--help_keys"
    )
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    listed = [line.partition("=")[0] for line in lines if line and line[0] != "#"]
    assert sorted(listed) == sorted(help_text.key_names())
    values = help_text._flat({**dates.get_config().to_dict()}) | {"model.width": 96}
    for key, value in values.items():
        assert any(line.partition("  #")[0] == f"{key}={value!r}" for line in lines), key
    assert "model.width=96  # default: 128; D" in lines
    assert "log_every=50  # steps between log lines" in lines
    assert "# stop | skip: what follows a NaN or infinite loss or gradient" in lines


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train.py --steps=100", "--steps is not a flag. Did you mean --config.steps=100?"),
        ("train.py --steps 100", "--steps is not a flag. Did you mean --config.steps=100?"),
        (
            "train.py --epochs=3",
            "--epochs is not a flag; --config.steps counts steps, of data.batch_size rows each.",
        ),
        ("train.py --batch_size=8", "Did you mean --config.data.batch_size=8 or --config.eval.b"),
        ("train.py --batch-size=8", "Did you mean --config.data.batch_size=8 or --config.eval.b"),
        ("train.py --lr=1e-3", "Did you mean --config.optimizer.learning_rate=1e-3?"),
        ("train.py --learning_rate=1", "Did you mean --config.optimizer.learning_rate=1?"),
        ("train.py --learnin_rate=1", "Did you mean --config.optimizer.learning_rate=1?"),
        ("train.py --model.width=3", "Did you mean --config.model.width=3?"),
        ("train.py --num_layers=3", "--config.model.encoder_layers=3 or --config.model.decoder_l"),
        ("train.py --wrkdir=x", "--wrkdir is not a flag. Did you mean --workdir=x?"),
        ("train.py --output_dir=x", "--output_dir is not a flag. Did you mean --workdir=x?"),
        ("train.py --confg=configs/pydoc.py", "Did you mean --config=configs/pydoc.py?"),
        ("train.py --xyzzy", "--xyzzy is not a flag. See --help."),
        ("prepare.py --beem", "--beem is not a flag. Did you mean --beam?"),
        ("plan.py --devices=a100:8", "Did you mean --device=a100:8?"),
        ("evaluate.py --spit=test", "--spit is not a flag. Did you mean --split=test?"),
        ("evaluate.py --config=configs/dates.py", "takes the config of the run in --workdir"),
        ("generate.py --max_tokens=3", "Did you mean --max_new_tokens=3?"),
        ("generate.py --steps=100", "--steps is not a flag. Did you mean --step=100?"),
        ("convert.py --form=x", "--form is not a flag. Did you mean --from=x?"),
        ("train.py --config=translation", "Did you mean --config=configs/translation.py?"),
        ("train.py --config translation", "Did you mean --config=configs/translation.py?"),
        ("train.py --config=translation.py:t5_style", "--config=configs/translation.py:t5_style?"),
        ("train.py --config=configs/translaton.py", "Did you mean --config=configs/translation.py"),
        ("plan.py --config=zzzz", "--config=zzzz: no such file. See --help for the list."),
        ("train.py --config.batch_size=8", "batch_size is not a config key. Did you mean --config"),
        (
            "train.py --config.data.batch=8",
            "data.batch is not a config key. Did you mean --config.",
        ),
        (
            "train.py --config=configs/listops.py --config.data.options.dept=8",
            "data.options.dept is not a config key. Did you mean 'depth'?",
        ),
        (
            "train.py --config=configs/listops.py --config.data.options.depth=4 --config.stps=8",
            "stps is not a config key. Did you mean 'steps'?",
        ),
        (
            "train.py --config=configs/dates.py --config.data.options.depth=8",
            "data.options.depth is not a config key: data.source=dates has no options",
        ),
        (
            "plan.py --config=configs/chat.py --config.data.options.dat=2024-07-26",
            "data.options.dat is not a config key. Did you mean 'date'? The options of "
            "data.source=chat_files: chat_template, date",
        ),
        ("train.py --config.model.d_model=8", "Did you mean --config.model.width?"),
        ("train.py configs/digits.py", "Did you mean --config=configs/digits.py?"),
    ],
)
def test_unknown_names_get_a_hint(monkeypatch, command, said):
    monkeypatch.chdir(scripts.ROOT)
    ended = scripts.run(*command.split())
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
    assert (ended.code, ended.out) == (command_line.BAD_INPUT, "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train.py --config.steps=1e3", "steps takes a whole number, not '1e3'"),
        ("train.py --config.steps 2.0", "steps takes a whole number, not '2.0'"),
        (
            "train.py --config=configs/digits.py --config.data.batch_size=64 --config.steps=",
            "steps takes a whole number, not ''",
        ),
        ("train.py --config.model.width=wide", "model.width takes a whole number, not 'wide'"),
        (
            "prepare.py --config.optimizer.learning_rate=fast",
            "optimizer.learning_rate takes a number, not 'fast'",
        ),
        (
            "plan.py --config.data.lowercase=maybe",
            "data.lowercase takes True or False, not 'maybe'",
        ),
        (
            "plan.py --config=configs/baskets.py --config.data.options.ordered=maybe",
            "data.options.ordered takes True or False, not 'maybe'",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(monkeypatch, command, said):
    monkeypatch.chdir(scripts.ROOT)
    ended = scripts.run(*command.split())
    assert (ended.code, ended.out, ended.err) == (command_line.BAD_INPUT, "", f"{said}\n")


def test_scripts_may_be_started_from_another_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert scripts.run("train.py", "--help").code == 0  # and the default config is found
    suggestion = help_text.missing_config("dates").rpartition("--config=")[2].removesuffix("?")
    assert Path(suggestion).resolve() == scripts.ROOT / "configs" / "dates.py"


@pytest.mark.parametrize("flag", ["options.depth", "listops_depth"])
def test_an_option_of_a_source_is_set_by_its_current_or_its_former_name(monkeypatch, flag):
    monkeypatch.chdir(scripts.ROOT)
    config = "--config=configs/listops.py"
    ended = scripts.run("train.py", config, f"--config.data.{flag}=7", "--help_keys")
    assert (ended.code, ended.err) == (0, "")
    options = {"arguments": 3, "depth": 7, "max_length": 30, "min_length": 4}
    assert f"data.options={options}  # default: {{}}" in ended.out.splitlines()


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["configs/chat.py", "date=2024-07-26"], {"date": "2024-07-26"}),
        (["configs/chat.py", "chat_template={{ 'a=b' }}\n"], {"chat_template": "{{ 'a=b' }}\n"}),
        (["configs/baskets.py", "ordered=True"], {"ordered": True}),
        (
            ["configs/series.py", "center=mean"],
            {"center": "mean", "horizon": 26, "longest_gap": 20},
        ),
        # Another source than the config file's, or one of a mixture.
        (["configs/dates.py", "seconds=0.64", "source=sound_files"], {"seconds": 0.64}),
        (
            ["configs/dates.py", "depth=4", "mixture=(('dates', 1.0), ('listops', 1.0))"],
            {"depth": 4},
        ),
    ],
)
def test_a_flag_sets_an_option_that_the_config_leaves_at_its_default(monkeypatch, given, options):
    monkeypatch.chdir(scripts.ROOT)
    config, option, *others = given
    flags = [f"--config.data.options.{option}", *(f"--config.data.{each}" for each in others)]
    ended = scripts.run("train.py", f"--config={config}", *flags, "--help_keys")
    assert (ended.code, ended.err) == (0, "")
    assert f"data.options={options}  # default: {{}}" in ended.out.splitlines()
    overrides = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)
    assert command_line.parse_config(config, overrides)["data"]["options"] == options
