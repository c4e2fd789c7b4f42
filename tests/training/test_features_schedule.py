"""Random features are redrawn every few steps, as a function of seed and step alone."""

import functools

import jax
import numpy as np
import pytest

from tests.training.examples import make_batch, make_job
from training.step import make_eval_step

PLAIN_DESCENT = dict(name="sgd", beta1=0.0, clip_norm=0.0, learning_rate=0.5)
BATCH = make_batch("causal_lm")


@functools.cache
def job(redraw=2, seed=0, accumulate=1, **model):
    """With a `redraw` of None, that of configs/default.py."""
    changes = dict(attention="performer", attention_features=8) | model
    if redraw is not None:
        changes |= dict(attention_redraw=redraw)
    optimizer = PLAIN_DESCENT | dict(accumulate=accumulate)
    return make_job("causal_lm", BATCH, model=changes, optimizer=optimizer, seed=seed)


def loss_at(step, **options):
    """The loss of the same parameters at this step."""
    chosen = job(**options)
    return float(chosen.step(chosen.start(step), BATCH)[1]["train/loss"])


def eval_loss():
    chosen = job()
    metrics, _ = make_eval_step(chosen.model, chosen.task)(chosen.start().params, BATCH)
    total, count = metrics["nll"]
    return float(total / count)


def test_features_are_redrawn_once_per_period():
    losses = [loss_at(step) for step in range(6)]
    assert losses[0::2] == losses[1::2]
    assert len(set(losses)) == 3
    assert np.ptp(losses) > 1e-4, "features must matter"
    assert loss_at(0, seed=1) not in losses


def test_by_default_training_uses_the_features_of_evaluation():
    """Otherwise parameters would fit features that evaluation and generation do not use."""
    losses = {loss_at(step, redraw=None) for step in (0, 1, 5000)}
    assert len(losses) == 1
    np.testing.assert_allclose(losses.pop(), eval_loss(), rtol=1e-6)
    assert abs(loss_at(0) - eval_loss()) > 1e-5


def test_a_resumed_run_is_identical():
    chosen = job()
    uninterrupted, _ = chosen.run(chosen.start(), BATCH, steps=5)
    half, _ = chosen.run(chosen.start(), BATCH, steps=3)
    saved = jax.tree.map(np.asarray, half)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, chosen.abstract)
    resumed, _ = chosen.run(jax.device_put(saved, shardings), BATCH, steps=2)
    for one, other in zip(jax.tree.leaves(uninterrupted), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


MIXED = dict(attention="performer,linear")  # different kinds are computed by code of their own


@pytest.mark.parametrize(
    ("changes", "plain"),
    [(dict(accumulate=4), {}), (dict(remat="full"), {}), (MIXED | dict(remat="full"), MIXED)],
    ids=str,
)
def test_features_do_not_depend_on_accumulation_or_remat(changes, plain):
    (after, metrics), (expected, expected_metrics) = (
        job(**options).step(job(**options).start(3), BATCH) for options in (changes, plain)
    )
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    for one, other in zip(
        jax.tree.leaves(after.params), jax.tree.leaves(expected.params), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


def test_patterns_follow_the_schedule():
    losses = [loss_at(step, **MIXED) for step in range(4)]
    assert losses[0::2] == losses[1::2] and losses[0] != losses[2]
