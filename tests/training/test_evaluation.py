"""Scores against figures worked out by hand, with a table of bigrams in place of the model."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.default import get_config
from tests.tiny import tiny_config
from training.config import TaskConfig
from training.evaluation import Evaluator, HeldOut, measure_names

TASK = TaskConfig(**get_config().task.to_dict())
PAD, BOS, EOS, SEP = 0, 1, 2, 3
V = 9


class Tokenizer:
    pad_id, bos_id, eos_id = PAD, BOS, EOS

    def decode(self, ids):
        return "".join(str(i) for i in np.asarray(ids) if i > SEP)


class Bigrams:
    """Looks the next token up by the last one. Takes the place of every head."""

    def apply(self, variables, inputs, *source, method=None, cache=None, **_):
        table_vv = variables["params"]
        if method == "encode":
            return inputs[..., None]
        logits_btv = table_vv[inputs]
        return (logits_btv, cache) if method == "decode" else logits_btv


class FirstTokenClassifier:
    def apply(self, variables, inputs_bt, **_):
        return variables["params"][inputs_bt[:, 0]]


class WithNextSentence(Bigrams):
    """Says that the second sentence follows where the first token is even."""

    def apply(self, variables, inputs_bt, **options):
        follows_b = 1 - inputs_bt[:, 0] % 2
        return super().apply(variables, inputs_bt), 4 * jax.nn.one_hot(follows_b, 2)


def batch(**rows):
    floats = ("weights",)
    return {
        name: jnp.asarray(values, jnp.float32 if name in floats else jnp.int32)
        for name, values in rows.items()
    }


def measure(objective, params, *batches, model=None, text_bytes=0, has_one_answer=False, **task):
    task = dataclasses.replace(TASK, objective=objective, **task)
    evaluator = Evaluator(model or Bigrams(), tiny_config(), task, Tokenizer())
    held_out = HeldOut(batches, text_bytes, has_one_answer)
    scores = evaluator.measure(jnp.asarray(params), held_out)
    assert sorted(scores) == sorted(measure_names(task, held_out))  # promised before any compile
    return scores


# Whatever was said, the next token is 0 with probability 1/2, 1 with 1/4, 2 and 3 with 1/8.
HALVES = jnp.log(jnp.broadcast_to(jnp.asarray([1 / 2, 1 / 4, 1 / 8, 1 / 8]), (4, 4)))
# Says 5 6 and ends, after the beginning as after a separator; 8 stands for all else.
CHAIN = np.full((V, V), -2.0, np.float32)
for token, successor in {BOS: 5, SEP: 5, 5: 6, 6: EOS}.items():
    CHAIN[token, successor] = 2.0
CHAIN[[0, EOS, 4, 7, 8], 8] = 2.0


def test_a_language_model_by_hand():
    scores = measure(
        "causal_lm",
        HALVES,
        batch(inputs=[[1, 0, 1]], targets=[[0, 1, 2]], weights=[[1, 1, 1]]),
        # One bit in the second batch: a mean of the batches' means would be 1.5 bits.
        batch(inputs=[[1, 0, 1]], targets=[[0, 3, 3]], weights=[[1, 0, 0]]),
        text_bytes=5,
    )
    bits = (1 + 2 + 3) + 1
    assert scores == {
        "loss": pytest.approx(bits * math.log(2) / 4),
        "accuracy": pytest.approx(2 / 4),
        "perplexity": pytest.approx(2 ** (bits / 4)),
        "bits_per_byte": pytest.approx(bits / 5),
    }


def test_smoothing_and_z_loss_stay_out_of_the_scores():
    rows = batch(inputs=[[1, 0]], targets=[[0, 1]], weights=[[1, 1]])
    smoothed = measure("causal_lm", HALVES, rows, label_smoothing=0.2, z_loss=0.1)
    assert smoothed == measure("causal_lm", HALVES, rows)
    assert smoothed["perplexity"] == pytest.approx(2**1.5)


def test_a_hopeless_model_has_a_finite_perplexity():
    far = jnp.asarray([[0.0, -1e4]] * 2)
    scores = measure("causal_lm", far, batch(inputs=[[0]], targets=[[1]], weights=[[1]]))
    assert scores["loss"] == pytest.approx(1e4)
    assert math.isfinite(scores["perplexity"])


SOURCE = dict(encoder_inputs=[[4, EOS]] * 5, encoder_segment_ids=[[1, 1]] * 5)


def test_answers_are_right_or_wrong_as_a_whole():
    scores = measure(
        "seq2seq",
        CHAIN,
        batch(
            **SOURCE,
            segment_ids=[[1, 1, 1, 1]] * 5,
            inputs=[[BOS, 5, 6, 0], [BOS, 5, 7, 0], [BOS, 5, 6, 6], [BOS, 5, 0, 0], [BOS, 5, 6, 0]],
            targets=[
                [5, 6, EOS, 0],  # right
                [5, 7, EOS, 0],  # another token
                [5, 6, 6, EOS],  # goes on where the model ends
                [5, EOS, 0, 0],  # ends where the model goes on
                [5, 6, EOS, 0],  # right, but fills up the batch
            ],
            weights=[[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]],
        ),
        has_one_answer=True,
    )
    assert scores["exact_match"] == pytest.approx(1 / 4)
    # Told the truth before each token: 3 of 3, 1 of 3, 3 of 4, 1 of 2.
    assert scores["accuracy"] == pytest.approx(8 / 12)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert "bits_per_byte" not in scores


def test_the_answer_begins_where_the_prompt_ends():
    scores = measure(
        "prefix_lm",
        CHAIN,
        batch(
            inputs=[
                [BOS, 4, SEP, 5, 6],
                [BOS, SEP, 5, 6, 0],  # a shorter prompt
                [BOS, 4, SEP, 7, 6],  # another answer than the model's
                [BOS, SEP, 5, 6, 0],  # fills up the batch
            ],
            targets=[
                [4, SEP, 5, 6, EOS],
                [SEP, 5, 6, EOS, 0],
                [4, SEP, 7, 6, EOS],
                [SEP, 5, 6, EOS, 0],
            ],
            prefix=[[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
            weights=[[0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]],
        ),
        has_one_answer=True,
    )
    assert scores["exact_match"] == pytest.approx(2 / 3)


def test_classes_by_hand():
    scores = measure(
        "classify_text",
        HALVES,
        batch(inputs=[[1], [2], [3], [0]], labels=[0, 0, 1, 0], weights=[1, 1, 1, 0]),
        model=FirstTokenClassifier(),
    )
    assert scores == {
        "loss": pytest.approx((1 + 1 + 2) * math.log(2) / 3),
        "accuracy": pytest.approx(2 / 3),
    }


def test_rows_that_fill_up_a_batch_have_no_next_sentence():
    scores = measure(
        "masked_lm",
        HALVES,
        batch(
            inputs=[[0, 1], [1, 1], [2, 1], [1, 1]],
            targets=[[0, 1], [0, 1], [0, 1], [0, 1]],
            weights=[[1, 1], [1, 0], [1, 0], [0, 0]],
            segment_ids=[[1, 1], [1, 1], [1, 1], [1, 1]],
            next_sentence=[1, 1, 1, 0],
        ),
        model=WithNextSentence(),
        next_sentence=True,
    )
    assert scores["accuracy"] == pytest.approx(3 / 4)
    assert scores["next_sentence_accuracy"] == pytest.approx(2 / 3)


def test_samples_show_question_answer_and_truth():
    task = dataclasses.replace(TASK, objective="seq2seq")
    evaluator = Evaluator(Bigrams(), tiny_config(), task, Tokenizer())
    rows = batch(
        **SOURCE,
        segment_ids=[[1, 1, 1]] * 5,
        inputs=[[BOS, 5, 7]] * 5,
        targets=[[5, 7, EOS]] * 5,
        weights=[[1, 1, 1]] * 5,
    )
    held_out = HeldOut([rows], 0, has_one_answer=True)
    text = evaluator.samples(jnp.asarray(CHAIN), held_out, [{"source": "four"}] * 2, ())
    block = "given:    four\nanswer:   56\nexpected: 57"
    assert text == f"{block}\n\n{block}\n"


def test_samples_of_a_classifier_name_the_classes():
    task = dataclasses.replace(TASK, objective="classify_text")
    evaluator = Evaluator(FirstTokenClassifier(), tiny_config(), task, Tokenizer())
    rows = batch(inputs=[[1], [2], [3]], labels=[0, 1, 0], weights=[1, 1, 1])
    examples = [{"text": "x", "label": 0}, {"text": "y", "label": 1}]
    text = evaluator.samples(HALVES, HeldOut([rows], 0, False), examples, ("half", "quarter"))
    assert text == "x -> half (half)\ny -> half (quarter)\n"
