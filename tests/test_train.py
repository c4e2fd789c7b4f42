"""Whole jobs, tiny: what they leave behind, and that an interruption changes nothing."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import train
from checkpointing import run_directory
from configs import (
    classify_text,
    dates,
    digits,
    langid,
    langid_mlm,
    pydoc,
    text_lm,
    text_to_text,
    translation,
)
from experiment import command_line
from experiment.schema import ConfigError
from tests.input_pipeline.corpora import write_corpus
from tests.runs import STEPS, TINY, saved, tiny
from training.exits import DivergedError

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("compile_once")

# By family: the experiment, what to shrink of its data, and its metrics.
EXPERIMENTS = {
    # Rows of two lengths in turns: steps that compile have no speed, so two of the four have one.
    "encoder": (langid, dict(length=24, buckets=(14,)), {"loss", "accuracy"}),
    "decoder": (pydoc, dict(length=32), {"loss", "accuracy", "perplexity", "bits_per_byte"}),
    "encoder_decoder": (
        dates,
        dict(length=12, encoder_length=40),
        {"loss", "accuracy", "perplexity", "exact_match"},
    ),
    "ViT": (digits, {}, {"loss", "accuracy"}),
}


def metrics(workdir):
    """metrics.jsonl without what a clock measured."""
    reports = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in report.items() if not name.startswith("perf/")}
        for report in reports
    ]


def units(workdir):
    """What the run's speed was counted in."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    names = {name for line in lines for name in json.loads(line)}
    rates = {name.removeprefix("perf/").removesuffix("_per_second") for name in names}
    return rates & {"images", "tokens"}


@pytest.mark.parametrize("family", EXPERIMENTS)
def test_an_interrupted_run_equals_the_uninterrupted_run(family, tmp_path):
    config, data, expected_metrics = EXPERIMENTS[family]
    complete, parts = tmp_path / "complete", tmp_path / "parts"
    scores = train.train_and_evaluate(tiny(config, data=data), complete)

    # Stopped after step 3, whose checkpoint was lost: the run resumes at step 2.
    train.train_and_evaluate(tiny(config, steps=3, data=data), parts)
    shutil.rmtree(parts / "checkpoints" / "3")
    resumed_scores = train.train_and_evaluate(tiny(config, data=data), parts)

    assert resumed_scores == scores
    assert {name.rpartition("/")[2] for name in scores} == expected_metrics
    expected, found = saved(complete, STEPS), saved(parts, STEPS)
    assert expected.keys() == found.keys()
    assert all(found[name].tobytes() == value.tobytes() for name, value in expected.items())
    assert metrics(parts) == metrics(complete)
    assert units(complete) == {"images" if family == "ViT" else "tokens"}
    check_files(complete, has_tokenizer=family != "ViT")


def check_files(workdir, *, has_tokenizer):
    assert json.loads((workdir / "config.json").read_text())["steps"] == STEPS
    assert json.loads((workdir / "model.json").read_text())["model"]["width"] == 16
    assert "packages" in json.loads((workdir / "environment.json").read_text())
    assert (workdir / "tokenizer.json").exists() == has_tokenizer
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {"2", "4"}
    assert {path.name[:8] for path in (workdir / "samples").iterdir()} == {"00000002", "00000004"}
    assert all(path.read_text().strip() for path in (workdir / "samples").iterdir())
    events = b"".join(path.read_bytes() for path in (workdir / "tensorboard").iterdir())
    assert b"config/text_summary" in events and b"_hparams_/session_end_info" in events
    names = {step: set() for step in range(1, STEPS + 1)}
    for record in metrics(workdir):
        names[record.pop("step")] |= record.keys()
    assert all("train/loss" in names[step] for step in names)
    assert [any(n.startswith("eval/") for n in names[step]) for step in names] == [0, 1, 0, 1]


def test_a_finished_run_is_only_evaluated_again(tmp_path):
    config = tiny(digits, steps=2)
    scores = train.train_and_evaluate(config, tmp_path)
    before = saved(tmp_path, 2)
    assert train.train_and_evaluate(config, tmp_path) == scores
    after = saved(tmp_path, 2)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_config_is_validated_once_per_process(tmp_path, monkeypatch):
    calls, from_mapping = [], train.sections.from_mapping
    monkeypatch.setattr(
        train.sections, "from_mapping", lambda config: calls.append(1) or from_mapping(config)
    )
    for resuming in (1, 2):
        train.train_and_evaluate(tiny(digits, steps=2), tmp_path)
        assert len(calls) == resuming


def test_a_directory_in_use_is_refused_before_data_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(train.pipeline, "load", lambda *_, **__: pytest.fail("data was loaded"))
    with run_directory.lock(tmp_path), pytest.raises(ConfigError, match="in use by another run"):
        train.train_and_evaluate(tiny(digits), tmp_path)


def test_a_run_starts_from_another_ones_parameters(tmp_path, capsys):
    size = dict(data=dict(length=24), optimizer=TINY["optimizer"] | dict(learning_rate=1e-30))
    train.train_and_evaluate(tiny(langid_mlm, steps=1, **size), tmp_path / "first")
    # Another seed: with the same one, both would start from the same parameters.
    config = tiny(langid, steps=1, **size) | dict(init_from=str(tmp_path / "first"), seed=1)
    train.train_and_evaluate(config, tmp_path / "second")

    said = capsys.readouterr().err
    taken = rf"parameters from {tmp_path}/first: [\d,]+ of [\d,]+ \(9\d\.\d%\); new: (.*)\n"
    (new,) = re.findall(taken, said)
    assert "have other shapes" not in said
    assert {"classes/bias", "classes/kernel"} <= set(new.split(", "))
    assert "backbone" not in new
    first, second = saved(tmp_path / "first", 1), saved(tmp_path / "second", 1)
    carried = [name for name in second if name.startswith("['params']['backbone']")]
    assert carried
    # With next to no learning rate, a step leaves everything where it was; the average too.
    for name in carried:
        average = name.replace("['params']", "['rest']['ema']")
        np.testing.assert_allclose(second[name], first[name], rtol=0, atol=1e-20)
        np.testing.assert_allclose(second[average], first[name], rtol=1e-6, atol=1e-20)


def test_a_run_resumes_after_its_text_and_tokenizer_moved(tmp_path):
    here, there = tmp_path / "here.txt", tmp_path / "there.txt"
    here.write_text("the same old song\n" * 100)

    def run(path, steps, **data):
        keys = dict(path=str(path), cache_dir=str(tmp_path / "cache"), length=32) | data
        train.train_and_evaluate(tiny(text_lm, steps=steps, data=keys), tmp_path / "run")

    def refusal(*args, **data):
        with pytest.raises(ConfigError) as refused:
            run(*args, **data)
        (line,) = str(refused.value).splitlines()
        return line

    run(here, 2)
    assert "(tokenizer_digest: " in refusal(here, 3, tokenizer="bpe", tokenizer_size=400)
    assert "data_digest: " not in refusal(here, 3, tokenizer="bpe", tokenizer_size=400)
    there.write_text("another old song\n" * 100)
    assert "(data_digest: " in refusal(there, 3)
    shutil.copy(here, there)
    run(there, 3, cache_dir=str(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    ("config", "folder", "eval_names"),
    [
        (text_lm, "documents", ["validation"]),
        (translation, "pairs", ["validation"]),
        (classify_text, "labelled", ["validation"]),
        (text_to_text, "tasks", ["validation_t0", "validation_t1", "validation_t2"]),
    ],
)
def test_user_files_can_be_trained_on(config, folder, eval_names, tmp_path):
    write_corpus(tmp_path)
    where = dict(path=str(tmp_path / folder), cache_dir=str(tmp_path / "cache"))
    data = dict(length=32, encoder_length=32, tokenizer_size=500, **where)
    scores = train.train_and_evaluate(tiny(config, steps=2, data=data), tmp_path / "run")
    losses = {name: value for name, value in scores.items() if name.endswith("/loss")}
    assert list(losses) == [f"eval/{name}/loss" for name in eval_names]
    assert all(np.isfinite(loss) for loss in losses.values())


def test_a_run_that_diverges_ends_and_saves_nothing(tmp_path):
    config = tiny(digits, optimizer=TINY["optimizer"] | dict(learning_rate=1e30))
    fault = r"the loss at step \d is (nan|inf) .* from the examples digits:\d+, .*; lower optimizer"
    with pytest.raises(DivergedError, match=fault):
        train.train_and_evaluate(config | dict(log_every=100), tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_command_line_ends_with_the_scores_as_json(tmp_path):
    overrides = [
        f"--config.{section}.{key}={value}"
        for section, values in TINY.items()
        for key, value in values.items()
    ]
    where = ["--config=configs/digits.py", f"--workdir={tmp_path}"]
    ended = subprocess.run(
        [sys.executable, "train.py", *where, *overrides, "--config.steps=2"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    scores = json.loads(line)
    assert scores["step"] == 2
    assert 0 <= scores["eval/held_out/accuracy"] <= 1
    assert "step 2/2" in ended.stderr
    # The end of the log summarizes the run and names the report command.
    summary = ended.stderr[ended.stderr.rindex("\nstep: 2 of 2, finished\n") :]
    for said in ("best: eval/held_out/accuracy ", "last: ", "time: ", "images: 8\n", "look: "):
        assert f"\n{said}" in summary
    assert f"--workdirs={tmp_path}" in summary.splitlines()[-1]
    # One style: lower case at the beginning, no full stop at the end, no prefix of a library.
    assert "compiling the training step for images 4 x 8 x 8 x 1" in ended.stderr
    for line in ended.stderr.splitlines():
        assert line[0] == "-" or line[0].islower(), line
        assert line[-1] != ".", line


def test_warnings_have_the_style_of_the_log():
    record = logging.LogRecord("absl", logging.WARNING, "x.py", 1, "%d were %s", (3, "cut"), None)
    assert command_line.LogLine().format(record) == "warning: 3 were cut"
