"""Each objective gets its head, and every array of a batch reaches the argument it is meant for."""

import dataclasses

import jax
import numpy as np
import pytest

from model.heads import Classifier, LanguageModel, MaskedLanguageModel
from tests.tiny import random_params, tiny_config
from tests.training.examples import MODELS, OBJECTIVES, TASK, make_batch
from training.model_for_task import forward, make_model, model_arguments

HEADS = {
    "causal_lm": LanguageModel,
    "prefix_lm": LanguageModel,
    "seq2seq": LanguageModel,
    "masked_lm": MaskedLanguageModel,
    "classify_text": Classifier,
    "classify_images": Classifier,
}
# What the model must not read: it would know the answers.
ANSWERS = ("targets", "weights", "labels", "next_sentence")


def setting(objective, model=None, **task):
    task = dataclasses.replace(TASK, objective=objective, **task)
    network = make_model(tiny_config(**MODELS[objective] | (model or {})), task)
    batch = make_batch(objective, rows=4)
    arguments, named = model_arguments(task, batch)
    return task, network, batch, random_params(network, *arguments, **named)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_head_suits_the_objective(objective):
    assert type(setting(objective)[1]) is HEADS[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_model_reads_the_question_and_not_the_answer(objective):
    task, network, batch, params = setting(objective)
    answer = jax.jit(lambda batch: forward(network, task, params, batch)["logits"])
    logits = np.asarray(answer(batch))
    for name, array in batch.items():
        # Turned round, every array stays valid, and none of these reads the same both ways.
        other = {**batch, name: np.ascontiguousarray(np.flip(array))}
        assert np.abs(array - other[name]).max() > 0, name
        same = np.array_equal(answer(other), logits)
        assert same == (name in ANSWERS), name


def test_next_sentence_is_an_answer_of_its_own():
    task, network, batch, params = setting("masked_lm", next_sentence=True)
    outputs = forward(network, task, params, batch)
    assert {name: output.shape for name, output in outputs.items()} == {
        "logits": (4, 8, tiny_config().vocab_size),
        "next_sentence": (4, 2),
    }
    task, network, batch, params = setting("masked_lm")
    assert set(forward(network, task, params, batch)) == {"logits"}


def test_dropout_is_on_if_it_has_a_key():
    task, network, batch, params = setting("causal_lm", model=dict(dropout_residual=0.5))
    run = jax.jit(lambda *key: forward(network, task, params, batch, *key)["logits"])
    assert np.array_equal(run(), run())
    assert np.array_equal(run(jax.random.key(0)), run(jax.random.key(0)))
    assert not np.array_equal(run(jax.random.key(0)), run(jax.random.key(1)))
    assert not np.array_equal(run(jax.random.key(0)), run())


def test_an_unknown_objective_is_a_mistake():
    task = dataclasses.replace(TASK, objective="guess")
    with pytest.raises(ValueError, match="guess"):
        make_model(tiny_config(), task)
    with pytest.raises(ValueError, match="guess"):
        model_arguments(task, {})


def test_predicted_positions_are_those_of_the_full_pass():
    task, network, batch, params = setting("masked_lm")
    everywhere = np.asarray(forward(network, task, params, batch)["logits"])
    rng = np.random.default_rng(0)
    predicted = rng.integers(0, batch["inputs"].shape[1], (4, 3)).astype(np.int32)
    few = forward(network, task, params, {**batch, "predicted": predicted})["logits"]
    expected = np.take_along_axis(everywhere, predicted[..., None], axis=1)
    np.testing.assert_allclose(few, expected, rtol=1e-5, atol=1e-5)
