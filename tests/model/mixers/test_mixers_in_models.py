"""Mixers in complete models: scans over layers, remat, dilations by layer, and learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.heads import LanguageModel
from model.stack import Stack
from tests.model.examples import pack, text_arguments, text_params, tokens
from tests.tiny import quick_jit, random_params, tiny_config

PACKED = pack([tokens(5, 1), tokens(6, 2)], [tokens(9, 3)], columns=12)
DILATED = dict(mixer="conv", mixer_options=(("dilations", 2.0),), decoder_layers=3)


@functools.cache
def value_and_gradients(config):
    inputs, options = text_arguments(PACKED)

    def loss(params):
        logits = LanguageModel(config).apply({"params": params}, *inputs, **options)
        return jnp.square(jnp.where((PACKED.segments > 0)[..., None], logits, 0)).mean()

    return quick_jit(jax.value_and_grad(loss))(text_params(config))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (dict(mixer="lstm"), dict(unroll=2)),
        (dict(mixer="lstm"), dict(remat="full")),
        (DILATED, dict(remat="dots")),
    ],
    ids=str,
)
def test_scans_and_remat_change_nothing(model, options):
    model = dict(family="decoder", position="none") | model
    for one, two in zip(
        jax.tree.leaves(value_and_gradients(tiny_config(**model))),
        jax.tree.leaves(value_and_gradients(tiny_config(**model, **options))),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)


def test_dilations_double_from_layer_to_layer():
    """Three layers with dilations 1, 2, 4 and two taps: the last of 12 tokens sees 7 before it."""
    config = tiny_config(
        family="decoder", position="none", mixer="conv", decoder_layers=3,
        mixer_options=(("taps", 2.0), ("dilations", 3.0)),
    )  # fmt: skip
    stack = Stack(config, layers=3, causal=True)
    x_btd = np.random.default_rng(0).normal(size=(1, 12, config.width)).astype(np.float32)
    params = random_params(stack, x_btd)
    slope = quick_jit(jax.grad(lambda x: stack.apply({"params": params}, x)[0][0, -1, 0]))(x_btd)
    assert (np.abs(slope[0]).max(axis=-1) > 0).tolist() == [False] * 4 + [True] * 8


def test_a_small_model_learns_to_copy():
    """Through one vector, and then by a recurrent state."""
    config = tiny_config(
        mixer="lstm", bridge="context_vector", position="none", vocab_size=8, width=32,
        feed_forward=64, encoder_layers=1, decoder_layers=1,
    )  # fmt: skip
    model, length, start = LanguageModel(config), 3, 0

    def batch(key):
        source = jax.random.randint(key, (64, length), 1, 8)
        return source, jnp.pad(source, ((0, 0), (1, 0)), constant_values=start)[:, :-1]

    def loss(params, key):
        source, shifted = batch(key)
        logits = model.apply({"params": params}, shifted, source)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, source)
        return losses.mean(), (logits.argmax(axis=-1) == source).mean()

    optimizer = optax.adam(1e-2)

    def step(state, key):
        params, opt_state = state
        gradients, accuracy = jax.grad(loss, has_aux=True)(params, key)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return (optax.apply_updates(params, updates), opt_state), accuracy

    @quick_jit
    def train(keys):
        params = model.init(jax.random.key(0), *batch(jax.random.key(1)))["params"]
        with jax.numpy_dtype_promotion("standard"):
            return jax.lax.scan(step, (params, optimizer.init(params)), keys)[1]

    accuracy = train(jax.random.split(jax.random.key(2), 250))
    assert accuracy[:5].mean() < 0.4
    assert accuracy[-20:].mean() > 0.97, "unlike a model that guesses one of seven"
