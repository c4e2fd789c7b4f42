"""A new objective is one file and one line in the table: nothing else names an objective.

With the table alone changed, the objective in backwards_lm.py passes the config check, makes
batches, trains, is evaluated, is planned for, generates and is exported.
"""

import json

import numpy as np
import pytest

import convert
import train
from configs import pydoc
from experiment import sections
from experiment.schema import ConfigError
from inference.prompts import TextPrompts
from input_pipeline import pipeline
from input_pipeline.batch_shapes import row_outline
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.sources.base import Splits
from input_pipeline.task_spec import choose_task_spec
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.objectives.backwards_lm import BackwardsLM
from tests.input_pipeline.objectives.rows_by_hand import BOS, EOS, A, B, C, T
from tests.input_pipeline.stand_in import stand_in
from tests.runs import tiny
from tests.tiny import data_config, masking, tiny_config
from training.flops import forward_flops

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(autouse=True)
def backwards(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, BackwardsLM.name, BackwardsLM())


def config(objective="backwards_lm", **changes):
    changes["task"] = dict(objective=objective) | changes.get("task", {})
    return tiny(pydoc, **changes)


def refusal(**changes):
    with pytest.raises(ConfigError) as refused:
        sections.from_mapping(config(**changes))
    return str(refused.value)


def test_the_config_accepts_it_by_name():
    assert sections.from_mapping(config()).task.objective == "backwards_lm"
    assert "Did you mean 'backwards_lm'?" in refusal(objective="backward_lm")


def test_unsupported_combinations_of_a_new_objective_are_refused():
    assert refusal(model=dict(family="encoder")).startswith(
        "task.objective=backwards_lm needs model.family=decoder, not encoder; with family=encoder "
        "choose one of: masked_lm, masked_items, classify_text"
    )
    assert "backwards_lm" in refusal(objective="masked_lm").partition("choose one of")[2]
    assert "needs task.objective=masked_lm, not backwards_lm" in refusal(
        task=dict(whole_words=True)
    )
    assert "bleu does not go with task.objective=backwards_lm; choose among: ece" in refusal(
        eval=dict(metrics=("bleu",))
    )


def test_data_that_it_cannot_read_is_refused_by_name():
    def refused(kind="documents", tokenizer=T, **keys):
        with pytest.raises(ConfigError) as refusal:
            choose_task_spec("backwards_lm", kind, data_config(**keys), tokenizer, masking())
        return str(refusal.value)

    assert refused("pairs", source="dates") == (
        "task.objective='backwards_lm' does not fit data.source='dates', whose examples are pairs; "
        "choose one of: seq2seq, prefix_lm"
    )
    assert "packing=True does not go with task.objective='backwards_lm'" in refused(packing=True)
    without_bos = ByteTokenizer()
    without_bos.bos_id = None
    assert "task.objective='backwards_lm' needs bos" in refused(tokenizer=without_bos)


def test_a_batch_by_hand(monkeypatch):
    examples = [{"text": "abc"}]
    splits = Splits("documents", examples, {"held_out": examples}, (), {}, "", "memory")
    stand_in(monkeypatch, "pydoc", splits)
    data = data_config(source="pydoc", tokenizer="byte", length=4, batch_size=1)
    loaded = pipeline.load(data, objective="backwards_lm", masking=masking(), seed=0)
    batch = loaded.train_batch(0)
    assert {name: rows.tolist() for name, rows in batch.items()} == {
        "inputs": [[BOS, EOS, C, B]],
        "targets": [[EOS, C, B, A]],
        "weights": [[1, 1, 1, 1]],
    }
    outline = row_outline(data, objective="backwards_lm", masking=masking())
    assert {n: (x.shape, x.dtype) for n, x in outline.items()} == {
        name: (rows[0].shape, rows.dtype) for name, rows in batch.items()
    }


def test_a_new_objective_trains_and_is_evaluated(monkeypatch, tmp_path):
    texts = [" ".join("abcdefgh"[n:] * 4) for n in range(8)]
    train_set, eval_set = ([{"text": text} for text in part] for part in (texts[2:], texts[:2]))
    splits = Splits("documents", train_set, {"held_out": eval_set}, (), {}, "d", "memory")
    stand_in(monkeypatch, "pydoc", splits)
    scores = train.train_and_evaluate(
        config(
            steps=30,
            data=dict(length=16),
            model=dict(dropout_residual=0.0),
            optimizer=dict(name="adam", learning_rate=1e-2, ema_decay=0.0, weight_decay=0.0),
            checkpoint=dict(every=0),
            eval=dict(every=0),
        ),
        tmp_path,
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < losses[0] - 1
    # Its targets are not the text in order, so it has no bits per byte.
    names = {f"eval/held_out/{name}" for name in ("loss", "accuracy", "perplexity")}
    assert names <= scores.keys() and "eval/held_out/bits_per_byte" not in scores
    assert scores["eval/held_out/loss"] < losses[0] - 1
    perplexity = np.exp(scores["eval/held_out/loss"])
    assert scores["eval/held_out/perplexity"] == pytest.approx(perplexity)
    (sample,) = (tmp_path / "samples").glob("*_held_out.txt")
    assert sample.read_text().startswith("given: ")


def test_a_new_objective_inherits_the_rest_from_causal_lm():
    decoder = tiny_config(family="decoder")
    assert forward_flops(decoder, "backwards_lm", 9) == forward_flops(decoder, "causal_lm", 9)
    prompt = TextPrompts("backwards_lm", "documents", T)("ab", "line 1")
    assert {name: ids.tolist() for name, ids in prompt.items()} == {"inputs": [BOS, A, B]}
    assert convert._head(sections.from_mapping(config()).task).objective == "causal_lm"
