"""Runs that depend on other runs: adapters on a base, a student and its teacher."""

import json
import re
import shutil

import numpy as np
import pytest

import evaluate
import train
from checkpointing import loaded_run, provenance, run_identity
from configs import langid, langid_mlm
from experiment.schema import ConfigError
from input_pipeline.tokenizers.tokenizer import load_tokenizer
from tests.runs import STEPS, TINY, saved, tiny
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("compile_once")

ADAM = TINY["optimizer"] | dict(name="adamw", learning_rate=1e-2)
LORA = dict(lora_rank=2)
KERNEL = "['backbone']['encoder']['blocks']['self_attention']['query']"


def config_of(experiment=langid, *, steps=STEPS, init_from="", data=None, **sections):
    data = dict(length=24, buckets=()) | (data or {})
    config = tiny(experiment, steps, **dict(data=data, optimizer=ADAM) | sections)
    return config | dict(init_from=str(init_from), seed=1 if init_from else 0)


@pytest.fixture(scope="module")
def first(tmp_path_factory, compile_once):
    """A classifier that others start from or learn from."""
    workdir = tmp_path_factory.mktemp("first") / "run"
    train.train_and_evaluate(config_of(steps=2), workdir)
    return workdir


def refusal(config, workdir):
    with pytest.raises(ConfigError) as refused:
        train.train_and_evaluate(config, workdir)
    (line,) = str(refused.value).splitlines()
    return line


def test_sinusoids_of_another_amplitude_are_refused(first, tmp_path):
    """Shapes do not reveal it: such runs differ only in model.init_std or in age."""
    shutil.copytree(first, tmp_path / "base")
    path = tmp_path / "base" / "model.json"
    record = json.loads(path.read_text())
    record["model"] |= dict(position="sinusoidal", sinusoidal_scale=1.0)
    path.write_text(json.dumps(record))
    ours = tiny_config(position="sinusoidal")
    with pytest.raises(ConfigError, match=r"by 1, this model by 0\.25; set .*scale=1\.0"):
        provenance.refuse_other_sinusoids(str(tmp_path / "base"), ours)
    same = tiny_config(position="sinusoidal", sinusoidal_scale=1.0)
    for init_from, model in ((tmp_path / "base", same), (first, ours), ("", ours)):
        provenance.refuse_other_sinusoids(str(init_from), model)


def assert_same(workdir, other):
    ours, theirs = saved(workdir, STEPS), saved(other, STEPS)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_init_from_a_wider_model_takes_what_fits_and_logs_the_rest(first, tmp_path, capsys):
    wider = dict(TINY["model"], width=2 * TINY["model"]["width"], dropout_residual=0.0)
    train.train_and_evaluate(config_of(steps=1, init_from=first, model=wider), tmp_path / "run")
    said = capsys.readouterr().err
    found = re.search(r"parameters from \S+: ([\d,]+) of ([\d,]+) \((.*)%\); new: (.*)\n", said)
    taken, total = (int(number.replace(",", "")) for number in found.group(1, 2))
    assert 0 < taken < total / 10
    assert float(found[3]) == pytest.approx(100 * taken / total, abs=0.1)
    assert re.fullmatch(r"(\S+, ){2}\S+ and \d+ more", found[4])
    assert "so this model's blocks are new" in said
    assert f"name the workdir twice: --config=configs/x.py:{first} --config.init_from" in said


def test_adapters_are_trained_resumed_and_used(first, tmp_path, capsys):
    shutil.copytree(first, tmp_path / "base")
    base, uninterrupted, parts = tmp_path / "base", tmp_path / "uninterrupted", tmp_path / "parts"

    def config(steps=STEPS):
        return config_of(steps=steps, init_from=base, finetune=LORA)

    scores = train.train_and_evaluate(config(), uninterrupted)
    assert "trainable: 128 of " in capsys.readouterr().err
    train.train_and_evaluate(config(2), parts)
    # The base is trained further; the adapters still belong to the checkpoint they started from.
    train.train_and_evaluate(config_of(steps=4), base)
    assert train.train_and_evaluate(config(), parts) == scores
    assert_same(uninterrupted, parts)

    own = {name for name in saved(uninterrupted, STEPS) if name.startswith("['params']")}
    assert len(own) == 4 and all("['lora_" in name for name in own)
    model = loaded_run.load(uninterrupted)
    average = saved(uninterrupted, STEPS)
    a, b = (average[f"['rest']['ema']{KERNEL}['lora_{part}']"] for part in "ab")
    kernel = saved(base, 2)[f"['params']{KERNEL}['kernel']"]
    found = model.params["backbone"]["encoder"]["blocks"]["self_attention"]["query"]["kernel"]
    expected = kernel + 8 * np.einsum("lir,lrhk->lihk", a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, kernel, atol=1e-3)
    again = evaluate.evaluate(uninterrupted)
    for name, value in scores.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-5, err_msg=name)

    shutil.rmtree(base / "checkpoints" / "2")
    assert "step 2 of" in refusal(config(6), parts) and "is gone" in refusal(config(6), parts)
    with pytest.raises(ConfigError, match="put it back there"):
        loaded_run.load(uninterrupted)


def test_a_student_is_resumed_with_its_teacher(first, tmp_path):
    def config(steps=STEPS):
        return config_of(steps=steps, task=dict(teacher=f"{first}:2", teacher_weight=0.5))

    train.train_and_evaluate(config(), tmp_path / "uninterrupted")
    train.train_and_evaluate(config(2), tmp_path / "parts")
    train.train_and_evaluate(config(), tmp_path / "parts")
    assert_same(tmp_path / "uninterrupted", tmp_path / "parts")
    lines = (tmp_path / "uninterrupted" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["train/teacher_kl"] > 0 for line in lines if "train/loss" in line)
    names = {
        name for name in saved(tmp_path / "uninterrupted", STEPS) if name.startswith("['params']")
    }
    assert names == {name for name in saved(first, 2) if name.startswith("['params']")}

    # Another model where the teacher was.
    record = json.loads((tmp_path / "parts" / "origins.json").read_text())
    record["teacher"]["params"]["classes/bias"]["checksum"] = "0" * 16
    (tmp_path / "parts" / "origins.json").write_text(json.dumps(record))
    assert "whose classes/bias has changed since" in refusal(config(6), tmp_path / "parts")


def test_a_teacher_with_another_task_is_refused(first, tmp_path, monkeypatch):
    def reason(experiment=langid, teacher=first, **sections):
        task = dict(teacher=str(teacher))
        return refusal(config_of(experiment, task=task, **sections), tmp_path / "student")

    assert "was trained for task.objective=classify_text, not masked_lm" in reason(langid_mlm)
    pieces = dict(tokenizer="bpe", tokenizer_size=400)
    assert "was trained with another tokenizer" in reason(data=pieces)
    shutil.copytree(first, tmp_path / "other")
    record = json.loads((tmp_path / "other" / "model.json").read_text())
    record["labels"][0] = "Klingon"
    (tmp_path / "other" / "model.json").write_text(json.dumps(record))
    # The edited copy stands for a teacher that was trained on other classes.
    monkeypatch.setattr(run_identity, "refuse_changed", lambda workdir, checkpoint: None)
    assert "are not among those that the model was trained on" in reason(teacher=tmp_path / "other")


def test_a_token_table_is_fitted_to_another_tokenizer(first, tmp_path, capsys):
    still = ADAM | dict(learning_rate=1e-30)
    pieces = dict(tokenizer="bpe", tokenizer_size=400)

    def config(**finetune):
        return config_of(steps=1, init_from=first, data=pieces, optimizer=still, finetune=finetune)

    assert "set finetune.resize_vocabulary=True" in refusal(config(), tmp_path / "run")
    train.train_and_evaluate(config(resize_vocabulary=True), tmp_path / "run")
    assert "tokens matched by what they spell: " in capsys.readouterr().err

    name = "['params']['backbone']['token_embedding']['embedding']"
    ours, theirs = saved(tmp_path / "run", 1)[name], saved(first, 2)[name]
    new, old = load_tokenizer(tmp_path / "run"), load_tokenizer(first)
    assert ours.shape[0] == new.vocab_size != old.vocab_size
    spelt = 0
    for id, piece in enumerate(new.pieces):
        if id == new.pad_id:
            expected = theirs[old.pad_id]
        elif len(piece) == 1 and piece.isascii():
            expected = theirs[old.encode(piece)[0]]
            spelt += 1
        elif len(piece) > 1 and piece.isalpha() and piece.isascii():
            expected = theirs.mean(axis=0)
        else:
            continue
        np.testing.assert_allclose(ours[id], expected, rtol=1e-5, atol=1e-7, err_msg=piece)
    assert spelt > 50
