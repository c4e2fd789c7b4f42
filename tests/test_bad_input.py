"""A hundred bad configs: each refused before anything compiles, in a few lines that name the fault.

They are listed by where they are found out: at the door, which is plain Python; at the start of a
run, once the data and the devices are known; and on the command line.
"""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import experiment
import train
from configs import (
    classify_images,
    classify_text,
    dates,
    default,
    digits,
    langid,
    pydoc,
    text_lm,
    text_to_text,
    translation,
)
from schema import ConfigError

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 3
LONGEST_LINE = 300  # of a person's patience; the longest is a list of all architectures
GONE = object()  # in place of a value: the key is taken out

# What changes in configs/default.py, an encoder-decoder that reads 64 tokens, and what the
# refusal has to say.
AT_THE_DOOR = [
    # Keys that do not exist, in every section
    ({"stepz": 10}, "stepz is not a config key. Did you mean 'steps'?"),
    ({"model.widht": 64}, "model.widht is not a config key. Did you mean 'width'?"),
    ({"model.decoder_layer": 2}, "Did you mean 'decoder_layers'?"),
    ({"data.batchsize": 8}, "data.batchsize is not a config key. Did you mean 'batch_size'?"),
    ({"task.objectve": "seq2seq"}, "Did you mean 'objective'?"),
    ({"optimizer.learning_rat": 0.1}, "Did you mean 'learning_rate'?"),
    ({"mesh.tensr": 1}, "mesh.tensr is not a config key. Did you mean 'tensor'?"),
    ({"checkpoint.evry": 5}, "checkpoint.evry is not a config key. Did you mean 'every'?"),
    ({"eval.sample": 2}, "eval.sample is not a config key. Did you mean 'samples'?"),
    ({"colour": "red"}, "colour is not a config key."),
    # Keys and sections that are not there
    ({"model.width": GONE}, "model.width is missing"),
    ({"seed": GONE}, "seed is missing"),
    ({"optimizer": GONE}, "optimizer must be a section of the config"),
    ({"eval": 3}, "eval must be a section of the config"),
    # Values of another type
    ({"model.width": "128"}, "model.width='128' must be an int"),
    ({"model.width": 128.0}, "model.width=128.0 must be an int"),
    ({"model.heads": True}, "model.heads=True must be an int"),
    ({"model.bias": 1}, "model.bias=1 must be a bool"),
    ({"model.tie_output": "yes"}, "model.tie_output='yes' must be a bool"),
    ({"model.position": 3}, "model.position=3 is not one of: sinusoidal, learned"),
    ({"model.dropout_residual": "0.1"}, "model.dropout_residual='0.1' must be a float"),
    ({"model.norm_epsilon": None}, "model.norm_epsilon=None must be a float"),
    ({"data.length": [64]}, "data.length=[64] must be an int"),
    ({"optimizer.learning_rate": "1e-3"}, "optimizer.learning_rate='1e-3' must be a float"),
    ({"optimizer.decay_embeddings": 0}, "optimizer.decay_embeddings=0 must be a bool"),
    ({"steps": 1e3}, "steps=1000.0 must be an int"),
    ({"init_from": None}, "init_from=None must be a str"),
    ({"profile_steps": 5}, "profile_steps=5 must be a tuple"),
    ({"profile_steps": (1, 2, 3)}, "profile_steps=(1, 2, 3) must have 2 entries"),
    ({"profile_steps": (1, 2.0)}, "profile_steps[1]=2.0 must be an int"),
    ({"mesh.data": "all"}, "mesh.data='all' must be an int"),
    ({"checkpoint.best_metric": True}, "checkpoint.best_metric=True must be a str"),
    # What is not a number
    ({"optimizer.learning_rate": math.nan}, "optimizer.learning_rate=nan must be a finite number"),
    ({"optimizer.learning_rate": math.inf}, "optimizer.learning_rate=inf must be a finite number"),
    ({"optimizer.clip_norm": -math.inf}, "optimizer.clip_norm=-inf must be a finite number"),
    ({"task.label_smoothing": math.nan}, "task.label_smoothing=nan must be a finite number"),
    ({"model.rope_theta": math.inf}, "model.rope_theta=inf must be a finite number"),
    ({"model.dropout_attention": math.nan}, "model.dropout_attention=nan must be a finite number"),
    # Too small, too large
    ({"model.width": 0}, "model.width=0 must be at least 1"),
    ({"model.vocab_size": -1}, "model.vocab_size=-1 must be at least 0"),
    ({"model.heads": -4}, "model.heads=-4 must be at least 1"),
    ({"model.dropout_embedding": 1.0}, "must be at least 0 and below 1"),
    ({"model.norm_epsilon": 0.0}, "model.norm_epsilon=0.0 must be above 0"),
    ({"model.init_std": -0.02}, "model.init_std=-0.02 must be at least 0"),
    ({"data.batch_size": 0}, "data.batch_size=0 must be at least 1"),
    ({"data.prefetch": -1}, "data.prefetch=-1 must be at least 0"),
    ({"task.noise_rate": 1.0}, "task.noise_rate=1.0 must be above 0 and below 1"),
    ({"task.mean_span": 0.5}, "task.mean_span=0.5 must be at least 1"),
    ({"optimizer.learning_rate": 0.0}, "optimizer.learning_rate=0.0 must be above 0"),
    ({"optimizer.beta2": 1.0}, "optimizer.beta2=1.0 must be at least 0 and below 1"),
    ({"optimizer.weight_decay": -0.1}, "optimizer.weight_decay=-0.1 must be at least 0"),
    ({"optimizer.accumulate": 0}, "optimizer.accumulate=0 must be at least 1"),
    ({"steps": 0}, "steps=0 must be at least 1"),
    ({"seed": -1}, "seed=-1 must be at least 0"),
    ({"seed": 2**32}, "seed=4294967296 must be at least 0 and below"),
    ({"mesh.fsdp": 0}, "mesh.fsdp=0 must be at least 1, or -1"),
    ({"mesh.tensor": -2}, "mesh.tensor=-2 must be at least 1, or -1"),
    ({"checkpoint.keep": 0}, "checkpoint.keep=0 must be at least 1"),
    ({"eval.batch_size": -8}, "eval.batch_size=-8 must be at least 1"),
    # Choices that do not exist
    ({"model.family": "decoders"}, "Did you mean 'decoder'?"),
    ({"model.norm": "rms_norm"}, "Did you mean 'rmsnorm'?"),
    ({"model.activation": "swigl"}, "Did you mean 'swiglu'?"),
    ({"model.attention": "flash"}, "model.attention='flash' is not one of: dot."),
    ({"model.dtype": "float16"}, "model.dtype='float16' is not one of: float32, bfloat16."),
    ({"model.pooling": "max"}, "model.pooling='max' is not one of: first, last, mean."),
    ({"data.source": "date"}, "data.source='date' is not one of: dates, pydoc, names, digits, "),
    ({"data.source": "text_file"}, "Did you mean 'text_files'?"),
    ({"task.objective": "casual_lm"}, "Did you mean 'causal_lm'?"),
    ({"optimizer.name": "adam_w"}, "Did you mean 'adamw'?"),
    ({"optimizer.schedule": "cosin"}, "Did you mean 'cosine'?"),
    (
        {"checkpoint.best_mode": "maximum"},
        "checkpoint.best_mode='maximum' is not one of: max, min.",
    ),
    # Sizes that do not go together
    ({"model.heads": 3}, "model.heads=3 does not divide model.width=128"),
    ({"model.kv_heads": 3}, "model.kv_heads=3 does not divide model.heads=4"),
    ({"model.kv_heads": 8}, "model.kv_heads=8 does not divide model.heads=4"),
    ({"model.encoder_layers": 0}, "model.encoder_layers=0, but family=encoder_decoder needs"),
    ({"model.position": "rope", "model.head_size": 33}, "the head size must be even, not 33"),
    ({"model.width": 129, "model.heads": 3}, "model.width=129 must be even"),
    ({"model.position": "t5_bias", "model.relative_buckets": 6}, "must be a multiple of 4"),
    (
        {"model.position": "t5_bias", "model.relative_max_distance": 16},
        "model.relative_max_distance=16 must exceed half of model.relative_buckets=32",
    ),
    ({"data.length": 513}, "data.length=513 exceeds model.max_length=512"),
    (
        {"model.position": "learned", "data.encoder_length": 600},
        "data.encoder_length=600 exceeds model.max_length=512",
    ),
    ({"optimizer.accumulate": 3}, "optimizer.accumulate=3 does not divide data.batch_size=64"),
    ({"optimizer.warmup_steps": 1000}, "leaves no step to decay before steps=1000"),
    (
        {"optimizer.schedule": "stable_decay", "optimizer.warmup_steps": 900},
        "optimizer.warmup_steps=900 reaches into the last optimizer.decay_fraction=0.2",
    ),
    ({"profile_steps": (5, 4)}, "profile_steps=(5, 4) must satisfy 1 <= first <= last"),
    ({"mesh.fsdp": -1}, "mesh.data and mesh.fsdp are -1"),
    # Choices that do not go together
    ({"task.objective": "causal_lm"}, "needs model.family=decoder, not encoder_decoder"),
    ({"model.family": "decoder"}, "needs model.family=encoder_decoder, not decoder"),
    ({"model.family": "encoder"}, "with family=encoder choose one of: masked_lm, classify_text"),
    (
        {"model.family": "decoder", "task.objective": "classify_text"},
        "model.pooling=first in a decoder sees the first token alone",
    ),
    (
        {"model.family": "encoder", "task.objective": "classify_images"},
        "classify_images takes patches, every other objective takes tokens",
    ),
    ({"model.input": "patches"}, "model.input=patches needs family=encoder, not encoder_decoder"),
    ({"model.token_types": 2}, "family=encoder_decoder has no use for it, set it to 0"),
    ({"model.output_scale": True, "model.tie_output": False}, "model.output_scale=True undoes"),
    ({"task.next_sentence": True}, "task.next_sentence=True needs task.objective=masked_lm"),
    (
        {
            "model.family": "encoder",
            "model.token_types": 1,
            "task.objective": "masked_lm",
            "task.next_sentence": True,
        },
        "model.token_types=1 cannot tell the two sentences",
    ),
    (
        {"optimizer.name": "sgd", "optimizer.weight_decay": 0.1},
        "optimizer.weight_decay=0.1 does nothing with optimizer.name=sgd",
    ),
    ({"checkpoint.best_metric": "loss"}, "checkpoint.best_metric=loss must be an evaluation's"),
    (
        {"checkpoint.best_metric": "eval/dates/loss", "checkpoint.every": 7, "eval.every": 5},
        "checkpoint.every=7 is not a multiple of eval.every=5; make them equal",
    ),
    (
        {"checkpoint.best_metric": "eval/dates/loss", "checkpoint.every": 7, "eval.every": 0},
        "checkpoint.every=7 is not a multiple of eval.every=0; make them equal",
    ),
    # Public data sets
    ({"data.source": "tfds", "data.kind": "documents"}, "data.name is empty; set it for data.so"),
    (
        {"data.source": "huggingface", "data.name": "lm1b"},
        "data.kind is empty; set it for data.source=huggingface to one of: pairs, documents, label",
    ),
    (
        {"data.source": "tfds", "data.name": "wmt17_translate/de-en", "data.kind": "pairs"},
        "data.source_language is empty",
    ),
    (
        {"data.source": "tfds", "data.name": "c", "data.kind": "images", "data.label_field": ""},
        "data.label_field is empty",
    ),
    (
        {"data.source": "tfds", "data.name": "c", "data.kind": "documents", "data.eval_split": ""},
        "data.eval_split is empty",
    ),
    # Rows of text
    ({"data.packing": True, "data.buckets": (16,)}, "are two ways to save padding; choose one"),
    ({"data.buckets": (0,)}, "data.buckets[0]=0 must be at least 1"),
    ({"data.buckets": 16}, "data.buckets=16 must be a tuple"),
    ({"data.mixture": (("pydoc", 1.0),), "data.buckets": (16,)}, "could not keep its proportions"),
    ({"data.mixture": (("pydoc", 0.0),)}, "data.mixture[0][1]=0.0 must be above 0"),
    ({"data.mixture": ("pydoc",)}, "data.mixture[0]='pydoc' must be a tuple"),
    ({"data.eval_share": 1.0}, "data.eval_share=1.0 must be above 0 and below 1"),
    ({"data.max_bad_records": -1}, "data.max_bad_records=-1 must be at least 0"),
    ({"data.over_long": "cut"}, "data.over_long='cut' is not one of: truncate, split, drop."),
    (
        {"data.source": "text_files", "data.eval_split": "train"},
        "data.eval_split='train' is what the model is trained on",
    ),
    # Images
    ({"data.flip": True}, "data.flip=True is for images, but task.objective=seq2seq reads text"),
    ({"data.image_mean": (0.5,)}, "data.image_mean=(0.5,) is for images"),
    ({"data.mixup": 0.2}, "reads text; set it to 0.0"),
    ({"data.mixup": -1.0}, "data.mixup=-1.0 must be at least 0"),
    ({"data.crop_scale": 1.5}, "data.crop_scale=1.5 must be at least 0 and at most 1"),
    ({"data.image_std": (0.0,)}, "data.image_std[0]=0.0 must be above 0"),
    (
        {"data.crop_padding": 4, "data.crop_scale": 0.5},
        "data.crop_padding=4 and data.crop_scale=0.5 are two ways to crop an image",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.image_size": 30},
        "model.patch_size=16 does not divide model.image_size=30",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.class_token": False},
        "model.pooling=first reads the class token",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.embedding_scale": True},
        "model.embedding_scale=True scales token embeddings",
    ),
]

AT_THE_START = [
    (langid, {"model.vocab_size": 100}, "model.vocab_size=100 is too small for the data"),
    (langid, {"model.num_classes": 3}, "model.num_classes=3 is too small for the data"),
    (langid, {"data.source": "pydoc"}, "does not fit data.source='pydoc'"),
    (dates, {"data.length": 1}, "data.length=1 has no room for target and eos; set it to at least"),
    (dates, {"data.packing": True}, "data.source='dates' makes its examples on demand"),
    (dates, {"data.over_long": "split"}, "a part of a pairs example has no answer of its own"),
    (
        langid,
        {"data.packing": True, "data.buckets": ()},
        "data.packing=True does not go with task.objective='classif",
    ),
    (pydoc, {"data.buckets": (16,)}, "but documents all make rows of the same; set it to ()"),
    (pydoc, {"data.mixture": (("pidoc", 1.0),)}, "'pidoc' must be a source, or source:path or"),
    (pydoc, {"data.tokenizer": "bep"}, "data.tokenizer='bep' is no file and not one of: byte, "),
    (text_lm, {}, "data.path is empty; set it to a file, a directory or a glob"),
    (text_lm, {"data.path": "/no/such"}, "data.path=/no/such matches no file; check it for a typ"),
    (translation, {}, "data.path='' is not a directory with files like train.en"),
    (translation, {"data.source_language": ""}, "data.source_language is empty; set it to a file"),
    (classify_text, {}, "data.path='' is not a directory with files like train.tsv"),
    (text_to_text, {}, "data.path='' is not a directory with files like train.jsonl"),
    (dates, {"task.objective": "span_corruption"}, "choose one of: seq2seq, prefix_lm"),
    (digits, {"model.patch_size": 3}, "model.patch_size=3 does not divide the images' 8 rows"),
    (digits, {"model.image_size": 16, "model.patch_size": 2}, "the data's images are 8x8x1"),
    (digits, {"model.max_length": 5, "model.patch_size": 2}, "an image makes 17 tokens"),
    (digits, {"data.image_size": 16}, "data.image_size=16 cannot change the images of data.source"),
    (digits, {"data.image_mean": (0.5, 0.5)}, "must have one number, or one for each of the 1"),
    (digits, {"data.crop_padding": 8}, "data.crop_padding=8 can leave nothing of an image of 8"),
    (classify_images, {}, "data.path is empty, but data.source='image_files' reads a directory"),
    (classify_images, {"data.path": "/no/such"}, "data.path=/no/such is not a directory"),
    (digits, {"mesh.data": 64}, "mesh.data=64, mesh.fsdp=1, mesh.sequence=1, mesh.tensor=1"),
    (digits, {"checkpoint.best_metric": "eval/nobody/exact_match"}, "is not measured here. Meas"),
    (digits, {"checkpoint.best_metric": "eval/held_out/acuracy"}, "'eval/held_out/accuracy'?"),
    (digits, {"init_from": "/no/such/run"}, "init_from=/no/such/run: no checkpoints/ in"),
]

ON_THE_COMMAND_LINE = [
    (["--config.model.widht=3"], "model.widht is not a config key. Did you mean 'width'?"),
    (["--config=configs/pydoc.py", "--config.evla.every=3"], "evla is not a config key. Did you"),
    (["--config.model.width=wide"], "--config.model.width=wide: invalid literal for int()"),
    (["--confg=configs/pydoc.py"], "Unknown command line flag 'confg'"),
    (["--config=configs/nope.py"], "No such file or directory: 'configs/nope.py'"),
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


def test_there_are_a_hundred():
    cases = [*AT_THE_DOOR, *AT_THE_START, *ON_THE_COMMAND_LINE]
    assert len({repr(case) for case in cases}) >= 100


def test_what_they_change_passes_the_door():
    experiment.from_mapping(default.get_config().to_dict())


@pytest.mark.parametrize("case", AT_THE_DOOR, ids=name_of)
def test_refused_at_the_door(case):
    changes, fragment = case
    with pytest.raises(ConfigError) as refusal:
        experiment.from_mapping(changed(default.get_config(), changes))
    assert_short_and_clear(str(refusal.value), fragment)


def test_every_fault_has_a_line_of_its_own():
    changes = {"model.widht": 64, "data.length": 0, "optimizer.name": "adamx"}
    with pytest.raises(ConfigError) as refusal:
        experiment.from_mapping(changed(default.get_config(), changes))
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == [
        "model.widht",
        "data.length=0",
        "optimizer.name='adamx'",
    ]


@pytest.mark.parametrize("case", AT_THE_START, ids=name_of)
def test_refused_at_the_start(case, tmp_path, compiled):
    config, changes, fragment = case
    with pytest.raises(ConfigError) as refusal:
        train.train_and_evaluate(changed(config.get_config(), changes), tmp_path)
    assert_short_and_clear(str(refusal.value), fragment)
    assert compiled == []


def test_weights_and_biases_is_missed_at_the_start(monkeypatch, tmp_path, compiled):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails, installed or not
    config = changed(digits.get_config(), {"wandb_project": "trial"})
    with pytest.raises(ConfigError) as refusal:
        train.train_and_evaluate(config, tmp_path)
    assert_short_and_clear(str(refusal.value), "needs Weights & Biases: pip install")
    # Optax converts a scalar when asked about its own state; the model is not compiled.
    assert set(compiled) <= {"jit(convert_element_type)"}


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
    assert (ended.returncode, ended.stdout) == (experiment.BAD_INPUT, "")


@pytest.mark.parametrize("case", ON_THE_COMMAND_LINE, ids=name_of)
def test_refused_on_the_command_line(case, tmp_path):
    arguments, fragment = case
    assert_the_command_refuses(arguments, tmp_path, fragment)


@pytest.mark.parametrize("case", IN_THE_FILES, ids=name_of)
def test_refused_for_what_is_in_the_files(case, tmp_path):
    config, files, fragment = case
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    where = [f"--config.data.path={tmp_path}", f"--config.data.cache_dir={tmp_path}/.cache"]
    arguments = [f"--config=configs/{config}.py", *where]
    assert_the_command_refuses(arguments, tmp_path / ".run", fragment)
