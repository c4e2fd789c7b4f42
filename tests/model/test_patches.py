"""Patches of one and two axes against loops over patches."""

import itertools
import math

import jax
import numpy as np
import pytest

from model.layers import PatchEmbedding
from tests.tiny import random_params, tiny_config

PATCHED = dict(family="encoder", input="patches", patch_size=2)


@pytest.mark.parametrize("shape", [(6, 4, 1), (4, 6, 3), (8, 1), (6, 2)])
@pytest.mark.parametrize("class_token", [False, True])
def test_patches_are_in_order_and_normalised(shape, class_token):
    *axes, channels = shape
    mean, std = tuple(range(1, channels + 1)), tuple(0.5 * n for n in range(1, channels + 1))
    config = tiny_config(
        **PATCHED, input_shape=shape, input_mean=mean, input_std=std, class_token=class_token,
        pooling="mean",
    )  # fmt: skip
    inputs = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    layer = PatchEmbedding(config)
    params = random_params(layer, inputs)
    found = np.asarray(layer.apply({"params": params}, inputs))

    kernel, bias = (np.asarray(params["projection"][name]) for name in ("kernel", "bias"))
    starts = itertools.product(*(range(0, axis, 2) for axis in axes))
    rows = []
    for start in starts:
        window = tuple(slice(at, at + 2) for at in start)
        patch = (inputs[(slice(None), *window)] - mean) / std
        rows.append(patch.reshape(3, -1) @ kernel + bias)
    expected = np.stack(rows, axis=1)
    if class_token:
        token = np.asarray(params["class_token"]["embedding"])
        expected = np.concatenate([np.broadcast_to(token, (3, 1, 16)), expected], axis=1)
    assert config.patch_tokens == expected.shape[1]
    assert config.values_per_patch == len(kernel) == 2 ** len(axes) * channels
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_one_number_normalises_all_channels():
    shape = (4, 3)
    inputs = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    plain = PatchEmbedding(tiny_config(**PATCHED, input_shape=shape))
    scaled = PatchEmbedding(
        tiny_config(**PATCHED, input_shape=shape, input_mean=(2.0,), input_std=(4.0,))
    )
    params = random_params(plain, inputs)
    np.testing.assert_allclose(
        scaled.apply({"params": params}, inputs * 4 + 2),
        plain.apply({"params": params}, inputs),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_patches_of_signals_begin_with_the_deviation_that_positions_expect():
    """Sinusoids have the initial deviation of patches of values with unit variance."""
    config = tiny_config(**PATCHED, input_shape=(64, 3), init_std=0.02, width=64)
    inputs = np.random.default_rng(0).normal(size=(8, 64, 3)).astype(np.float32)
    layer = PatchEmbedding(config)
    params = jax.jit(layer.init)(jax.random.key(0), inputs)["params"]
    found = np.asarray(layer.apply({"params": params}, inputs))[:, 1:]
    assert config.sinusoidal_scale == pytest.approx(0.02 * math.sqrt(2 * 3))
    assert found.std() == pytest.approx(config.sinusoidal_scale, rel=0.1)
