"""DPO's loss and gradient against the formula in NumPy; a run with adapters and one without."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

import evaluate
import train
from configs import chat
from experiment.schema import ConfigError
from tests.input_pipeline.chats import write_lines
from tests.runs import tiny
from tests.training.examples import TASK
from training.losses import term_counts, term_sums, total_loss

B, T, V = 5, 7, 11
BETA = 0.3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def example():
    rng = np.random.default_rng(3)
    logits, reference = rng.normal(0, 2, (2, B, T, V)).astype(np.float32)
    weights = np.zeros((2, B, T), np.float32)
    weights[0, :, 1:3] = weights[1, :, 4:7] = 1
    weights[:, -1] = 0  # a row that only pads the batch
    batch = dict(targets=rng.integers(0, V, (B, T)).astype(np.int32))
    return logits, reference, batch | dict(weights=weights[0], rejected_weights=weights[1])


def task(**changes):
    return dataclasses.replace(TASK, objective="dpo", dpo_beta=BETA, **changes)


def by_formula(logits, reference, batch):
    """Rewards of both answers of each pair."""
    rows, columns = np.indices((B, T))
    ratio = (log_softmax(logits) - log_softmax(reference))[rows, columns, batch["targets"]]
    return [BETA * (ratio * batch[name]).sum(1) for name in ("weights", "rejected_weights")]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_the_paper(example, smoothing):
    logits, reference, batch = example
    chosen, rejected = (rewards[:-1] for rewards in by_formula(*example))
    margin = chosen - rejected
    expected = -(1 - smoothing) * np.log(sigmoid(margin)) - smoothing * np.log(sigmoid(-margin))
    config = task(label_smoothing=smoothing)
    loss_sums, metrics = term_sums(config, {"logits": logits}, batch, reference)
    loss = total_loss(loss_sums, term_counts(config, batch))
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
    found = {name: float(total / count) for name, (total, count) in metrics.items()}
    values = dict(nll=-np.log(sigmoid(margin)), accuracy=margin > 0, margin=margin)
    values |= dict(chosen_reward=chosen, rejected_reward=rejected)
    assert found == pytest.approx({name: value.mean() for name, value in values.items()}, rel=1e-4)
    assert 0 < found["accuracy"] < 1


def test_the_gradient_is_that_of_the_paper(example):
    """-beta sigmoid(-margin) times the gradients of the log-probabilities, and 0 for a filler."""
    logits, reference, batch = example
    counts = term_counts(task(), batch)

    def loss(logits):
        return total_loss(term_sums(task(), {"logits": logits}, batch, reference)[0], counts)

    chosen, rejected = by_formula(*example)
    signs = batch["weights"] - batch["rejected_weights"]
    of_log_probs = np.eye(V)[batch["targets"]] - np.exp(log_softmax(logits))
    factor = -BETA * sigmoid(rejected - chosen) / (B - 1)
    expected = factor[:, None, None] * signs[..., None] * of_log_probs
    found = jax.grad(loss)(logits)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not found[-1].any() and abs(found[:-1]).max() > 1e-3


PAIRS = [
    {"prompt": f"{word}?", "chosen": "yes", "rejected": "no"}
    for word in ("one", "two", "three", "four")
]


def config(directory, **sections):
    write_lines(directory / "chats" / "train.jsonl", PAIRS)
    write_lines(directory / "chats" / "validation.jsonl", PAIRS)
    data = dict(path=str(directory / "chats"), cache_dir=str(directory / "cache"), packing=False)
    sections["data"] = data | dict(length=64) | sections.get("data", {})
    sizes = dict(decoder_layers=1, width=16, heads=2, feed_forward=32, unroll=1)
    return tiny(chat, model=sizes | dict(dropout_residual=0.0), **sections)


@pytest.fixture(scope="module")
def base(tmp_path_factory, compile_once):
    """A run of one step on conversations, and its directory."""
    directory = tmp_path_factory.mktemp("dpo")
    lines = [{"prompt": pair["prompt"], "completion": "maybe"} for pair in PAIRS]
    for split in ("train", "validation"):
        write_lines(directory / "talk" / f"{split}.jsonl", lines)
    settings = config(
        directory,
        steps=1,
        data=dict(path=str(directory / "talk")),
        eval=dict(every=0, samples=0),
        checkpoint=dict(every=1),
    )
    train.train_and_evaluate(settings, directory / "base")
    return directory


@pytest.mark.parametrize("finetune", [dict(lora_rank=2), {}], ids=["adapters", "all"])
def test_a_run_learns_which_answer_is_better(base, finetune):
    workdir = base / f"run{len(finetune)}"
    settings = config(
        base,
        steps=8,
        data=dict(source="preference_files"),
        task=dict(objective="dpo", dpo_beta=0.5),
        finetune=finetune,
        optimizer=dict(learning_rate=2e-2, ema_decay=0.0),
        eval=dict(every=4, samples=0, batch_size=3, batches=0),
        checkpoint=dict(every=8),
    )
    scores = train.train_and_evaluate({**settings, "init_from": str(base / "base")}, workdir)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if "train/loss" in line)
    # At the start, the model is its reference: all rewards are 0.
    assert first["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["train/margin"] == pytest.approx(0, abs=1e-6) and first["train/accuracy"] == 0
    assert scores["eval/validation/accuracy"] == 1
    assert scores["eval/validation/margin"] > 0.1
    assert scores["eval/validation/loss"] < 0.65
    assert scores["eval/validation/margin"] == pytest.approx(
        scores["eval/validation/chosen_reward"] - scores["eval/validation/rejected_reward"]
    )
    assert "eval/validation/perplexity" not in scores
    # evaluate.py finds the reference again.
    found = evaluate.evaluate(workdir)
    for name, score in scores.items():
        if name.startswith("eval/"):
            assert found[name] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    "changes, problem",
    [
        (dict(finetune=dict(lora_rank=2, lora_also_train=".*scale")), "lora_also_train"),
        (dict(eval=dict(metrics=("ece",))), "ece does not go with"),
        (dict(model=dict(feed_forward=48)), "has no .* that fits"),
    ],
)
def test_what_has_no_reference_is_refused(base, changes, problem):
    settings = config(base, data=dict(source="preference_files"), task=dict(objective="dpo"))
    settings["init_from"] = str(base / "base")
    for name, value in changes.items():
        settings[name] = settings[name] | value if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=problem):
        train.train_and_evaluate(settings, base / "refused")
