"""model.layer_groups: layers that share parameters are layers with equal ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.heads import LanguageModel
from tests.tiny import quick_jit, random_params, tiny_config

TOKENS = np.random.default_rng(0).integers(3, 20, (2, 7))
SIZES = dict(encoder_layers=4, decoder_layers=4, width=16, heads=2, feed_forward=20, vocab_size=20)


def loss_and_gradients(config, params):
    model = LanguageModel(config)
    inputs = (TOKENS, TOKENS[:, ::-1]) if config.family == "encoder_decoder" else (TOKENS,)
    loss = lambda params: jnp.square(model.apply({"params": params}, *inputs)).mean()  # noqa: E731
    return quick_jit(jax.value_and_grad(loss))(params)


def in_blocks(path):
    return any(part.key == "blocks" for part in path)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("decoder", {}),
        ("decoder", dict(attention="dot,local,local", attention_window=2, remat="full")),
        ("encoder_decoder", {}),
    ],
)
def test_gradients_are_the_sums_over_the_layers_of_a_group(family, more):
    shared = tiny_config(family=family, layer_groups=2, **SIZES, **more)
    own = dataclasses.replace(shared, layer_groups=0)
    model = LanguageModel(shared)
    inputs = (TOKENS, TOKENS) if family == "encoder_decoder" else (TOKENS,)
    params = random_params(model, *inputs)
    repeated = jax.tree.map_with_path(
        lambda path, leaf: np.repeat(leaf, 2, axis=0) if in_blocks(path) else leaf, params
    )
    found_loss, found = loss_and_gradients(shared, params)
    expected_loss, expected = loss_and_gradients(own, repeated)
    np.testing.assert_allclose(found_loss, expected_loss, rtol=1e-6)
    for (path, ours), theirs in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        if in_blocks(path):
            assert len(ours) == 2 and len(theirs) == 4
            theirs = theirs.reshape(2, 2, *theirs.shape[1:]).sum(axis=1)
        scale = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(ours / scale, theirs / scale, atol=1e-5, err_msg=str(path))
