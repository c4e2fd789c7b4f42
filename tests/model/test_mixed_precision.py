"""Gradients of float32 parameters through bfloat16 products, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.layers import Embedding
from model.mixed_precision import add_bias, matmul
from tests.tiny import tiny_config

ROWS = 64


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return draw(4, ROWS // 4, 8), draw(8, 6), draw(6), draw(4, ROWS // 4, 6)


def as_numpy(x, through=jnp.bfloat16):
    return np.asarray(x.astype(through).astype(jnp.float32), np.float64)


def test_gradients_are_sums_in_float32_of_products_of_bfloat16(drawn):
    x, kernel, bias, slope = drawn
    slope = slope.astype(jnp.bfloat16)

    def loss(x, kernel, bias):
        return jnp.sum(add_bias(matmul(x, kernel), bias) * slope, dtype=jnp.float32)

    y = add_bias(matmul(x.astype(jnp.bfloat16), kernel), bias)
    assert y.dtype == jnp.bfloat16
    plain = x.astype(jnp.bfloat16) @ kernel.astype(jnp.bfloat16) + bias.astype(jnp.bfloat16)
    np.testing.assert_array_equal(y, plain)
    of_x, of_kernel, of_bias = jax.grad(loss, (0, 1, 2))(x.astype(jnp.bfloat16), kernel, bias)
    assert (of_x.dtype, of_kernel.dtype, of_bias.dtype) == (jnp.bfloat16, *[jnp.float32] * 2)
    x_64, slope_64 = as_numpy(x).reshape(ROWS, -1), as_numpy(slope).reshape(ROWS, -1)
    np.testing.assert_allclose(of_kernel, x_64.T @ slope_64, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_bias, slope_64.sum(0), rtol=1e-5, atol=1e-5)
    expected = slope_64 @ as_numpy(kernel).T
    np.testing.assert_allclose(as_numpy(of_x).reshape(ROWS, -1), expected, rtol=1e-2, atol=1e-2)


def test_the_gradient_of_a_row_looked_up_often_is_not_rounded_on_the_way():
    """In bfloat16 1 + 1/512 is 1: of small numbers behind a large one nothing would be left."""
    config = tiny_config(dtype="bfloat16")
    table = Embedding(config, 3, "vocab")
    ids = jnp.ones((1, 513), jnp.int32)
    params = table.init(jax.random.key(0), ids)
    slope = jnp.full((1, 513, config.width), 1 / 512, jnp.bfloat16).at[:, 0].set(1.0)

    def loss(params):
        return jnp.sum(table.apply(params, ids) * slope, dtype=jnp.float32)

    gradient = jax.tree.leaves(jax.grad(loss)(params))[0]
    np.testing.assert_allclose(gradient[1], 2.0, rtol=1e-6)
    np.testing.assert_array_equal(gradient[jnp.array([0, 2])], 0.0)


def test_the_gradient_of_a_broadcast_bias_sums_over_rows(drawn):
    _, _, _, slope = drawn
    added, slope = jnp.ones((1, *slope.shape[1:])), slope.astype(jnp.bfloat16)

    def loss(added):
        return jnp.sum(add_bias(jnp.zeros_like(slope), added) * slope, dtype=jnp.float32)

    expected = as_numpy(slope).sum(0, keepdims=True)
    np.testing.assert_allclose(jax.grad(loss)(added), expected, rtol=1e-6, atol=1e-6)
