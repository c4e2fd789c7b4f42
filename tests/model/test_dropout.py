"""Dropout: the right share, no bias, everywhere it is configured and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.dot_attention import dot_attention
from model.dropout import dropout
from model.heads import LanguageModel
from model.layers import FeedForward
from model.stack import Stack
from tests.model.examples import text_params, tokens
from tests.tiny import quick_jit, random_params, tiny_config

KINDS = ("dropout_embedding", "dropout_attention", "dropout_residual", "dropout_feed_forward")
DRAWS = 4000


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    ones = jnp.ones((500, 401))  # an odd width: half of each row's last random word is unused
    dropped = np.asarray(dropout(ones, rate, jax.random.key(0)))
    share = (dropped == 0).mean()
    deviation = np.sqrt(rate * (1 - rate) / ones.size)
    assert abs(share - rate) < 4 * deviation
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-3)
    assert dropped.mean() == pytest.approx(1, abs=4 * deviation / (1 - rate))


def test_neighbours_are_independent():
    # Two entries share a random word; were they to share bits, both would fall together.
    dropped = np.asarray(dropout(jnp.ones((500, 400)), 0.5, jax.random.key(1))) == 0
    both = (dropped[:, 0::2] & dropped[:, 1::2]).mean()
    assert both == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("rate", [1e-6, 1 - 1e-6])
def test_rates_too_fine_for_the_random_bits(rate):
    dropped = np.asarray(dropout(jnp.ones((100, 100)), rate, jax.random.key(2)))
    assert np.isfinite(dropped).all()
    assert (dropped == 0).mean() == pytest.approx(rate, abs=1e-3)


def assert_unbiased(draws: jax.Array, expected: jax.Array):
    """The mean of many draws is what comes out without dropout, within five of its deviations."""
    deviation = draws.std(axis=0) / np.sqrt(len(draws))
    assert (deviation > 0).mean() > 0.9, "nothing was dropped"
    assert (np.abs(draws.mean(axis=0) - expected) <= 5 * deviation + 1e-6).all()


def test_attention_is_unbiased():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 4, 2, 3)), jnp.float32) for _ in range(3))

    def attend(key):
        return dot_attention(q, k, v, dropout_rate=0.3, dropout_key=key)

    draws = quick_jit(jax.vmap(attend))(jax.random.split(jax.random.key(0), DRAWS))
    assert_unbiased(draws, dot_attention(q, k, v))


def test_feed_forward_is_unbiased():
    config = tiny_config(dropout_feed_forward=0.3)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 16)), jnp.float32)
    params = random_params(FeedForward(config, deterministic=True), x)

    def draw(key):
        layer = FeedForward(config, deterministic=False)
        return layer.apply({"params": params}, x, rngs={"dropout": key})

    draws = quick_jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), DRAWS))
    assert_unbiased(draws, FeedForward(config, deterministic=True).apply({"params": params}, x))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_acts_in_training_alone(kind):
    inputs = tokens(8, seed=0)[None]
    config = tiny_config(family="decoder", **{kind: 0.5})
    model, variables = LanguageModel(config), {"params": text_params(config)}

    @quick_jit
    def drop(key):
        return model.apply(variables, inputs, deterministic=False, rngs={"dropout": key})

    evaluated = model.apply(variables, inputs)
    plain = LanguageModel(tiny_config(family="decoder")).apply(variables, inputs)
    np.testing.assert_array_equal(evaluated, plain)
    first, again, second = (drop(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, evaluated, atol=1e-2)
    assert not np.allclose(first, second, atol=1e-2)


def test_layers_drop_different_entries():
    """Each of two layers adds 1 to every entry, or nothing: sums are 0, 1 or 2 times 1 / keep.

    If both dropped the same entries, there would be no 1.
    """
    config = tiny_config(position="none", dropout_residual=0.5)
    stack = Stack(config, layers=2, causal=True)
    x = jnp.zeros((1, 1, config.width))
    params = jax.tree.map(jnp.zeros_like, random_params(stack, x))
    params["blocks"]["feed_forward"]["out"]["bias"] += 1.0
    params["final_norm"]["scale"] += 1.0
    hidden, _ = stack.apply(
        {"params": params}, x, deterministic=False, rngs={"dropout": jax.random.key(0)}
    )
    assert len(np.unique(np.round(hidden, 4))) == 3
