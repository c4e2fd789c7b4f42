"""evaluate.py: the scores that train.py reported last, and more on request."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

import evaluate
import train
from checkpointing import loaded_run, run_identity
from configs import default, digits, langid_mlm, text_lm, translation
from evaluation.evaluator import Evaluator
from experiment import command_line
from experiment.schema import ConfigError
from input_pipeline import token_cache
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import MissingSplitError, refusal_of_split
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.corpora import text_files, write
from tests.runs import STEPS, TINY, tiny
from training.infer_sizes import refuse_other_data

pytestmark = pytest.mark.usefixtures("compile_once")

ROOT = Path(__file__).resolve().parent.parent
# Rows of each split; the last line is longer than a row of the data.
SIZES = {"train": 40, "validation": 11, "test": 3}
LENGTH = 40


def english(split, number):
    return f"this is number {number} of the {split} text" + " again" * (number % 10 == 9)


def german(split, number):
    return f"das ist die Zahl {number} aus dem Text {split}" + ", noch einmal" * (number % 10 == 9)


def write_translation(directory):
    for split, size in SIZES.items():
        for ending, line in (("en", english), ("de", german)):
            lines = [line(split, number) + "\n" for number in range(size)]
            write(directory / f"{split}.{ending}", "".join(lines))
            if split == "train":
                write(directory / f"copy.{ending}", "".join(lines))


@pytest.fixture(scope="module")
def translated(tmp_path_factory, compile_once):
    """A translation run with a tokenizer of its own, and its last scores."""
    directory = tmp_path_factory.mktemp("translation")
    write_translation(directory / "corpus")
    data = dict(
        path=str(directory / "corpus"), cache_dir=str(directory / "cache"), tokenizer_size=400,
        length=LENGTH, encoder_length=LENGTH,
    )  # fmt: skip
    settings = dict(batch_size=4, batches=0, metrics=("bleu", "chrf", "rouge"))
    checkpoint = dict(every=2, keep=9, best_metric="eval/validation/chrf")
    config = tiny(translation, data=data, eval=settings, checkpoint=checkpoint)
    return directory / "run", train.train_and_evaluate(config, directory / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, compile_once):
    """A ViT's run, without a moving average."""
    workdir = tmp_path_factory.mktemp("digits")
    settings = dict(metrics=("top5_accuracy", "matthews", "spearman"))
    config = tiny(digits, steps=2, optimizer=dict(ema_decay=0.0), eval=settings)
    return workdir, train.train_and_evaluate(config, workdir)


def scores_of(record):
    return {name: value for name, value in record.items() if name.startswith("eval/")}


def with_changes(workdir, **sections):
    config = loaded_run.recorded_config(workdir)
    return config | {name: config[name] | values for name, values in sections.items()}


def test_text_is_scored_as_at_the_end_of_training(translated, tmp_path, monkeypatch):
    workdir, last = translated

    def forbidden(*_):
        raise AssertionError("the run has a tokenizer")

    monkeypatch.setattr(token_cache, "train_tokenizer", forbidden)
    config = with_changes(workdir, data=dict(cache_dir=str(tmp_path)))
    record = evaluate.evaluate(workdir, config=config)
    assert scores_of(record) == last
    assert last.keys() >= {f"eval/validation/{name}" for name in ("bleu", "chrf", "rougeL")}
    assert record["step"] == STEPS and record["split"] == "all"
    assert record["averaged_steps"] == [STEPS]
    assert record["overrides"] == {"data.cache_dir": str(tmp_path)}
    assert record["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert len(list(tmp_path.iterdir())) == 1, "nothing was prepared but the held-out text"
    assert json.loads((workdir / "evaluations.jsonl").read_text().splitlines()[-1]) == record


def test_a_run_with_the_former_key_of_metrics_is_scored_by_the_same_ones(translated, tmp_path):
    workdir, last = translated
    older = tmp_path / "older"
    shutil.copytree(workdir, older)
    config = json.loads((older / "config.json").read_text())
    config["eval"]["measures"] = config["eval"].pop("metrics")
    (older / "config.json").write_text(json.dumps(config))
    record = evaluate.evaluate(older)
    assert scores_of(record) == last
    assert (record["overrides"], *record["signatures"]) == ({}, "bleu", "chrf")


def test_images_are_scored_as_at_the_end_of_training(pictures):
    workdir, last = pictures
    record = evaluate.evaluate(workdir)
    assert scores_of(record) == last
    names = "loss", "accuracy", "top5_accuracy", "matthews", "spearman"
    assert {name.rpartition("/")[2] for name in last} == set(names)


def test_masked_tokens_are_scored_as_at_the_end_of_training(tmp_path):
    last = train.train_and_evaluate(tiny(langid_mlm, steps=1, data=dict(length=24)), tmp_path)
    assert scores_of(evaluate.evaluate(tmp_path)) == last


def test_running_text_is_scored_as_at_the_end_of_training(tmp_path):
    data = dict(text_files(tmp_path / "corpus"), length=32, cache_dir=str(tmp_path / "cache"))
    config = tiny(text_lm, steps=1, data=dict(data, tokenizer="wordpiece", tokenizer_size=300))
    last = train.train_and_evaluate(config, tmp_path / "run")
    assert scores_of(evaluate.evaluate(tmp_path / "run")) == last
    assert "eval/validation/bits_per_byte" in last


def test_rope_scaling_changes_the_score(tmp_path, monkeypatch):
    """ntk scaling is a larger theta: a run with that theta must have the same score."""
    data = dict(text_files(tmp_path / "corpus"), length=16, cache_dir=str(tmp_path / "cache"))
    model = dict(position="rope", rope_theta=100.0)
    config = tiny(text_lm, data=dict(data, tokenizer="byte"), model=model)
    workdir = tmp_path / "run"
    train.train_and_evaluate(config, workdir)

    def loss(**keys):
        config = with_changes(workdir, data=dict(length=64), model=keys)
        record = evaluate.evaluate(workdir, config=config)
        assert {f"model.{key}" for key in keys} <= record["overrides"].keys()
        return record["eval/validation/loss"]

    plain = loss()
    linear = loss(rope_scaling="linear", rope_factor=4.0)
    ntk = loss(rope_scaling="ntk", rope_factor=4.0)
    assert len({plain, linear, ntk}) == 3

    size = TINY["model"]["width"] // TINY["model"]["heads"]
    for name in ("config.json", "model.json"):
        record = json.loads((workdir / name).read_text())
        record["model"]["rope_theta"] = 100.0 * 4.0 ** (size / (size - 2))
        (workdir / name).write_text(json.dumps(record))
    # The edited records stand for a run with that theta.
    monkeypatch.setattr(run_identity, "refuse_changed", lambda workdir, checkpoint: None)
    assert loss() == pytest.approx(ntk, rel=1e-6)


def test_waves_go_as_far_as_asked_for(translated):
    workdir, _ = translated

    def loss(length, **model):
        settings = dict(batches=1, metrics=())
        changes = dict(data=dict(encoder_length=length), eval=settings, model=model)
        config = with_changes(workdir, **changes)
        return evaluate.evaluate(workdir, config=config)["eval/validation/loss"]

    with pytest.raises(ConfigError, match=r"data\.encoder_length=99 exceeds model\.max_length=98"):
        loss(99, max_length=98)
    # The texts are shorter than that: beyond them there is padding alone.
    assert loss(99, max_length=99) == pytest.approx(loss(98, max_length=98), rel=1e-5)


def test_known_answers_get_the_score_that_sacrebleu_gives_them(translated, monkeypatch):
    workdir, _ = translated
    tokenizer = loaded_run.load(workdir).tokenizer

    def translate(text):
        number = text.split()[3]
        return f"Das ist Zahl {number} aus dem Text, noch einmal" if int(number) % 2 else "nein"

    def generate(self, params, batch, *, has_target):
        texts = [translate(tokenizer.decode(row)) for row in np.asarray(batch["encoder_inputs"])]
        ids = [np.append(tokenizer.encode(text), tokenizer.eos_id)[:LENGTH] for text in texts]
        tokens_bt = np.stack([np.pad(row, (0, LENGTH - len(row))) for row in ids])
        return jnp.asarray(tokens_bt), batch["targets"], batch["weights"]

    monkeypatch.setattr(Evaluator, "_generate", generate)
    scores = evaluate.evaluate(workdir)
    numbers = range(SIZES["validation"])
    hypotheses = [translate(english("validation", number)) for number in numbers]
    references = [german("validation", number) for number in numbers]
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert scores["eval/validation/bleu"] == pytest.approx(bleu) and 10 < bleu < 90
    chrf = sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert scores["eval/validation/chrf"] == pytest.approx(chrf)
    assert scores["eval/validation/exact_match"] == 0


def test_another_split_is_evaluated(translated):
    workdir, last = translated
    record = evaluate.evaluate(workdir, split="test", config=with_changes(workdir))
    assert record["split"] == "test" and record["overrides"] == {}
    assert {name.split("/")[1] for name in scores_of(record)} == {"test"}
    assert record["eval/test/loss"] != last["eval/validation/loss"]
    one_set = evaluate.evaluate(workdir, split="validation")
    assert scores_of(one_set) == last


def test_training_rows_are_scored_as_a_copy_of_them_held_out(translated, capsys):
    workdir, last = translated
    train_scores = scores_of(evaluate.evaluate(workdir, split="train"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: --split=train: these are {SIZES['train']} training rows")
    copied = scores_of(evaluate.evaluate(workdir, split="copy"))
    assert train_scores == {
        name.replace("/copy/", "/train/"): value for name, value in copied.items()
    }
    assert train_scores["eval/train/loss"] != last["eval/validation/loss"]


def test_the_training_rows_of_an_embedded_source_are_scored(pictures):
    config = with_changes(pictures[0], eval=dict(batches=2))
    scores = scores_of(evaluate.evaluate(pictures[0], split="train", config=config))
    assert {name.split("/")[1] for name in scores} == {"train"}
    assert scores["eval/train/loss"] != pictures[1]["eval/held_out/loss"]


def test_averaged_checkpoints_have_their_own_score(translated):
    workdir, last = translated
    record = evaluate.evaluate(workdir, average=2)
    assert record["averaged_steps"] == [2, 4] and record["step"] == 4
    first = evaluate.evaluate(workdir, step="2")
    losses = {each["eval/validation/loss"] for each in (first, record, last)}
    assert len(losses) == 3


def test_unknown_splits_and_batches_are_refused(translated, pictures):
    with pytest.raises(ConfigError) as refused:
        evaluate.evaluate(translated[0], split="tset")
    corpus = translated[0].parent / "corpus"
    assert str(refused.value) == (
        f"--split=tset: {corpus} has no such split. Did you mean 'test'? "
        "It has: copy, test, train, validation"
    )
    with pytest.raises(
        ConfigError, match=r"--split=heldout: .*digits has no such split. .*'held_out'\? It holds"
    ):
        evaluate.evaluate(pictures[0], split="heldout")


def test_a_split_with_the_content_of_another_is_evaluated(translated, tmp_path):
    """Splits are told apart by their names, not by what they hold."""
    workdir, last = translated
    for path in (workdir.parent / "corpus").iterdir():
        write(tmp_path / "corpus" / path.name, path.read_text(encoding="utf-8"))
    for ending in ("en", "de"):
        shutil.copy(tmp_path / f"corpus/validation.{ending}", tmp_path / f"corpus/test.{ending}")
    config = with_changes(workdir, data=dict(path=str(tmp_path / "corpus")))
    found = scores_of(evaluate.evaluate(workdir, split="test", config=config))
    assert found == {name.replace("/validation/", "/test/"): last[name] for name in last}


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (
            refusal_of_split("data.eval_split='tset[:9]'", "tset[:9]", ["train", "test"]),
            "--split=tset[:9]: DIR has no such split. Did you mean 'test'? It has: train, test, x",
        ),
        (
            refusal_of_split("data.eval_split='test[:9x]': no", "test[:9x]", ["train", "test"]),
            "--split='test[:9x]': no",
        ),
        (MissingSplitError("data.train_split='a'", "a", ["b"]), "data.train_split='a'"),
    ],
)
def test_errors_on_the_split_name_the_flag(problem, says):
    data = DataConfig(**default.get_config().data.to_dict() | {"path": "DIR"})
    asked = "tset[:9]" if "tset" in says else "test[:9x]"
    with (
        pytest.raises(ConfigError) as refused,
        evaluate.in_terms_of_the_flag(asked, data, ("x",)),
    ):
        raise problem
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (dict(labels=("no", "yes")), r"classes, \('no', 'yes'\), are not .*, \('a', 'b'\); name"),
        (dict(image_shape=(8, 8, 3)), "images are 8x8x3, but the model was trained on 8x8x1"),
        (dict(text_pairs=True), "are pairs of texts, but the model was trained on single texts"),
    ],
)
def test_data_that_the_model_was_not_made_for_is_refused(data, reason):
    config = SimpleNamespace(image_size=8, image_channels=1, token_types=1)
    model = SimpleNamespace(model_config=config, labels=("a", "b"), tokenizer=ByteTokenizer())
    fits = dict(labels=("a", "b"), image_shape=(8, 8, 1), signal_shape=None, text_pairs=False)
    refuse_other_data(model, SimpleNamespace(**fits))
    with pytest.raises(ConfigError, match=reason):
        refuse_other_data(model, SimpleNamespace(**fits | data))


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "evaluate.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        | environment,
        capture_output=True,
        text=True,
    )


def test_the_command_line_prints_one_object_on_any_number_of_devices(pictures):
    workdir, last = pictures
    two_devices = "--xla_force_host_platform_device_count=2"
    ended = run("--workdir", str(workdir), "--config.eval.samples=0", XLA_FLAGS=two_devices)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    record = json.loads(line)
    assert scores_of(record) == pytest.approx(last, rel=1e-5)
    assert record["overrides"] == {"eval.samples": 0}
    assert (workdir / "evaluations.jsonl").read_text().splitlines()[-1] == line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--workdir is missing; give the directory of a run"),
        (["--workdir=/no/such/run"], "/no/such/run is not a run's directory; check --workdir"),
        (["--workdir={}", "--config.evla.every=3"], "evla is not a config key. Did you mean"),
    ],
)
def test_bad_input_is_refused_in_a_line(pictures, arguments, reason):
    ended = run(*(argument.format(pictures[0]) for argument in arguments))
    assert (ended.returncode, ended.stdout) == (command_line.BAD_INPUT, "")
    assert reason in ended.stderr and len(ended.stderr.splitlines()) == 1
