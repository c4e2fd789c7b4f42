"""A hundred bad inputs: each is refused before compilation, in a few lines that name the fault.

They are listed by where they are found: in the config, by plain Python; at the start of a run, once
the data and the devices are known; and on the command line.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import train
from configs import (
    classify_images,
    classify_text,
    dates,
    default,
    digits,
    langid,
    listops,
    pydoc,
    text_lm,
    text_to_text,
    translation,
)
from experiment import command_line, sections
from experiment.schema import ConfigError
from tests.experiment.bad_configs import GONE, INVALID_CONFIGS

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 3
LONGEST_LINE = 336  # of a person's patience; the longest is the list of all sources
AT_THE_START = [
    (langid, {"model.vocab_size": 100}, "model.vocab_size=100 is too small for the data"),
    (langid, {"model.num_classes": 3}, "model.num_classes=3 is too small for the data"),
    (langid, {"data.source": "pydoc"}, "does not fit data.source='pydoc'"),
    (dates, {"data.length": 1}, "data.length=1 has no room for target and eos; set it to at least"),
    (dates, {"data.packing": True}, "data.source='dates' generates its examples on demand"),
    (listops, {"data.buckets": (32,)}, "data.source='listops' generates its examples on demand"),
    (
        dates,
        {"data.mixture": (("listops", 1.0),), "data.options": {"min_length": 29}},
        "data.mixture: 'listops': data.options.max_length=30 must exceed",
    ),
    (dates, {"data.over_long": "split"}, "a part of a pairs example has no answer of its own"),
    (
        langid,
        {"data.packing": True, "data.buckets": ()},
        "data.packing=True does not go with task.objective='classif",
    ),
    (pydoc, {"data.buckets": (16,)}, "but documents all make rows of the same; set it to ()"),
    (pydoc, {"data.bucket_count": 2}, "data.bucket_count sorts examples by length, but documents"),
    (pydoc, {"data.mixture": (("pidoc", 1.0),)}, "'pidoc' must be a source, or source:path or"),
    (pydoc, {"data.tokenizer": "bep"}, "data.tokenizer='bep' is no file and not one of: byte, "),
    (pydoc, {"data.tokenizer": "gpt2"}, "write data.tokenizer=hf://openai-community/gpt2; of"),
    (text_lm, {}, "data.path is empty; set it to a file, a directory or a glob"),
    (text_lm, {"data.path": "/no/such"}, "data.path=/no/such matches no file; check it for a typ"),
    (translation, {}, "data.path is empty; set it to a directory with files like train.en"),
    (translation, {"data.source_language": ""}, "data.source_language is empty; set it to a file"),
    (classify_text, {}, "data.path is empty; set it to a directory with files like train.tsv"),
    (text_to_text, {}, "data.path is empty; set it to a directory with files like train.jsonl"),
    (dates, {"task.objective": "span_corruption"}, "choose one of: seq2seq, prefix_lm"),
    (digits, {"model.patch_size": 3}, "model.patch_size=3 does not divide the images' 8 rows"),
    (digits, {"model.image_size": 16, "model.patch_size": 2}, "the data's images are 8x8x1"),
    (digits, {"model.max_length": 5, "model.patch_size": 2}, "an image becomes 17 tokens"),
    (digits, {"data.image_size": 16}, "data.image_size=16 cannot change the images of data.source"),
    (digits, {"data.image_mean": (0.5, 0.5)}, "must have one number, or one for each of the 1"),
    (digits, {"data.crop_padding": 8}, "data.crop_padding=8 can crop away all of an image of 8"),
    (classify_images, {}, "data.path is empty, but data.source='image_files' reads a directory"),
    (classify_images, {"data.path": "/no/such"}, "data.path=/no/such is not a directory"),
    (digits, {"mesh.data": 64}, "mesh.data=64, mesh.fsdp=1, mesh.sequence=1, mesh.tensor=1"),
    (
        digits,
        {"checkpoint.best_metric": "eval/nobody/exact_match"},
        "is not measured here. Metrics",
    ),
    (digits, {"checkpoint.best_metric": "eval/held_out/acuracy"}, "'eval/held_out/accuracy'?"),
    (langid, {"eval.metrics": ("pearson",)}, "needs classes that are numbers, but one of the"),
    (
        pydoc,
        {"task.objective": "prefix_lm", "eval.metrics": ("bleu",)},
        "and held_out has none; set it to ()",
    ),
    (digits, {"init_from": "/no/such/run"}, "init_from=/no/such/run: no checkpoints/ in"),
    (digits, {"task.teacher": "/no/such/run"}, "task.teacher=/no/such/run: no checkpoints/ in"),
    (digits, {"finetune.freeze": "backbne/.*"}, "matches no full name of a parameter. Did you mea"),
    (digits, {"finetune.freeze": ".*"}, "finetune.freeze='.*' matches all parameters"),
]

ON_THE_COMMAND_LINE = [
    (["--config.model.widht=3"], "model.widht is not a config key. Did you mean 'width'?"),
    (["--config=configs/pydoc.py", "--config.evla.every=3"], "evla is not a config key. Did you"),
    (["--config.model.width=wide"], "model.width takes a whole number, not 'wide'"),
    (["--confg=configs/pydoc.py"], "Did you mean --config=configs/pydoc.py?"),
    (["--config=configs/nope.py"], "--config=configs/nope.py: no such file."),
    (["--config=configs/dates.py:gpt3"], "unknown architecture 'gpt3'; known are: "),
    (["configs/dates.py"], "unexpected argument 'configs/dates.py'; options start with --"),
    (["--config.model.heads=5"], "model.heads=5 does not divide"),
    (["--config=configs/langid.py", "--config.model.vocab_size=9"], "too small for the data"),
]

# Files of one's own, and what is wrong with them.
IN_THE_FILES = [
    (
        "text_lm",
        {"a.txt": b"fine\n" * 9 + b"caf\xe9\n" + b"fine\n" * 9},
        "/a.txt:10: not valid UTF-8",
    ),
    ("text_lm", {"a.txt": b""}, "the split 'train' has 0 examples"),
    (
        "translation",
        {"train.en": b"a\nb\n", "train.de": b"a\n", "validation.en": b"", "validation.de": b""},
        "/train.en has 2 lines and ",
    ),
    (
        "translation",
        {"train.1.en": b"a\n", "train.1.de": b"a\n", "train.2.en": b"a\n"}
        | {"validation.en": b"a\n", "validation.de": b"a\n"},
        "/train.2.en has no train.2.de beside it",
    ),
    (
        "classify_text",
        {"train.tsv": b"good\ta film\nbad\n", "validation.tsv": b"good\ta film\n"},
        "/train.tsv:2: 1 columns; needs label, tab, text",
    ),
    (
        "text_to_text",
        {"train.jsonl": b"{}\n", "validation.jsonl": b"{}\n"},
        "/train.jsonl:1: lacks 'task'",
    ),
]


def name_of(case):
    return case[-1][:50]


def changed(config, changes):
    config = copy.deepcopy(config.to_dict())
    for path, value in changes.items():
        *sections, key = path.split(".")
        section = config
        for name in sections:
            section = section[name]
        if value is GONE:
            del section[key]
        else:
            section[key] = value
    return config


def assert_short_and_clear(message, fragment):
    assert fragment in message
    lines = message.splitlines()
    assert len(lines) <= MOST_LINES
    assert all(len(line) <= LONGEST_LINE for line in lines)


@pytest.fixture
def compiled():
    """The names of the programs that jax compiles during a test."""
    names = []

    def listen(event, _, fun_name="", **__):
        if "backend_compile" in event:
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_there_are_at_least_a_hundred_cases():
    cases = [*INVALID_CONFIGS, *AT_THE_START, *ON_THE_COMMAND_LINE]
    assert len({repr(case) for case in cases}) >= 100


def test_the_unchanged_defaults_are_valid():
    sections.from_mapping(default.get_config().to_dict())


@pytest.mark.parametrize("case", INVALID_CONFIGS, ids=name_of)
def test_invalid_config_values_are_refused(case):
    changes, fragment = case
    with pytest.raises(ConfigError) as refusal:
        sections.from_mapping(changed(default.get_config(), changes))
    assert_short_and_clear(str(refusal.value), fragment)


def test_a_missing_tokenizer_file_is_reported_first():
    changes = {"data.tokenizer": "bert-base-uncased", "data.path": "x"}
    with pytest.raises(ConfigError) as refusal:
        sections.from_mapping(changed(classify_text.get_config(), changes))
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == [
        "data.tokenizer='bert-base-uncased'",
        "data.lowercase=True",
    ]


def test_every_fault_has_a_line_of_its_own():
    changes = {"model.widht": 64, "data.length": 0, "optimizer.name": "adamx"}
    with pytest.raises(ConfigError) as refusal:
        sections.from_mapping(changed(default.get_config(), changes))
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == [
        "model.widht",
        "data.length=0",
        "optimizer.name='adamx'",
    ]


@pytest.mark.parametrize("case", AT_THE_START, ids=name_of)
def test_training_refuses_bad_input_before_compiling(case, tmp_path, compiled):
    config, changes, fragment = case
    with pytest.raises(ConfigError) as refusal:
        train.train_and_evaluate(changed(config.get_config(), changes), tmp_path)
    assert_short_and_clear(str(refusal.value), fragment)
    assert compiled == []


def test_missing_wandb_is_refused_at_the_start(monkeypatch, tmp_path, compiled):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails, installed or not
    config = changed(digits.get_config(), {"wandb_project": "trial"})
    with pytest.raises(ConfigError) as refusal:
        train.train_and_evaluate(config, tmp_path)
    assert_short_and_clear(str(refusal.value), "needs Weights & Biases: pip install")
    # Optax converts a scalar when asked about its own state; the model is not compiled.
    assert set(compiled) <= {"jit(convert_element_type)"}


def test_missing_qwix_is_refused_at_the_start(monkeypatch, tmp_path, compiled):
    monkeypatch.setitem(sys.modules, "qwix", None)  # importing it fails, installed or not
    config = digits.get_config()
    sections.from_mapping(config.to_dict())  # not needed without the key
    for matmul in ("int8", "fp8"):
        with pytest.raises(ConfigError) as refusal:
            train.train_and_evaluate(changed(config, {"model.matmul": matmul}), tmp_path)
        command = f"model.matmul={matmul} needs qwix to multiply in 8 bits; install it: pip install"
        assert_short_and_clear(str(refusal.value), command)
    assert compiled == []


def test_a_workdir_below_a_file_is_refused_at_the_start(tmp_path, compiled):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as refusal:
        train.train_and_evaluate(pydoc.get_config().to_dict(), tmp_path / "file" / "run")
    assert_short_and_clear(str(refusal.value), "cannot be written (Not a directory)")
    assert compiled == []


def assert_the_command_refuses(arguments, workdir, fragment):
    ended = subprocess.run(
        [sys.executable, "train.py", *arguments, f"--workdir={workdir}"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert_short_and_clear(ended.stderr, fragment)
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (command_line.BAD_INPUT, "")


@pytest.mark.parametrize("case", ON_THE_COMMAND_LINE, ids=name_of)
def test_bad_flags_are_refused(case, tmp_path):
    arguments, fragment = case
    assert_the_command_refuses(arguments, tmp_path, fragment)


@pytest.mark.parametrize("case", IN_THE_FILES, ids=name_of)
def test_bad_data_files_are_refused(case, tmp_path):
    config, files, fragment = case
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    where = [f"--config.data.path={tmp_path}", f"--config.data.cache_dir={tmp_path}/.cache"]
    arguments = [f"--config=configs/{config}.py", *where]
    assert_the_command_refuses(arguments, tmp_path / ".run", fragment)
