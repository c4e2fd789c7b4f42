"""Gradients of float32 parameters through bfloat16 products, against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.layers import Embedding, Norm, activate, gated
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


def saved_by(function, *given):
    """The types and sizes of what the backward pass of a function keeps, but for its arguments."""
    names = {id(x) for x in jax.tree.leaves(given)}
    backward = jax.vjp(function, *given)[1]
    return [(x.dtype, x.size) for x in jax.tree.leaves(backward) if id(x) not in names]


NORMS = ("layernorm", "rmsnorm")
POINTWISE = ("gelu", "gelu_tanh", "silu")
BIG = 4 * 96  # elements of x


@pytest.mark.parametrize("name", [*NORMS, *POINTWISE, "swiglu"])
def test_in_bfloat16_no_inner_value_is_kept_for_the_backward_pass(name):
    def run(dtype):
        rng = np.random.default_rng(0)
        x, gate = (jnp.asarray(rng.normal(size=(4, 96)), dtype) for _ in range(2))
        if name == "swiglu":
            config = tiny_config(activation=name, dtype=dtype)
            function, given = lambda gate, x: gated(config, gate, x), (gate, x)
        elif name in NORMS:
            norm = Norm(tiny_config(norm=name, dtype=dtype))
            params = jax.tree.map(
                lambda leaf: jnp.linspace(0.5, 1.5, leaf.size),
                nn.unbox(norm.init(jax.random.key(0), x)),
            )
            function, given = lambda x: norm.apply(params, x), (x,)
        else:
            function, given = lambda x: activate(name, x), (x,)
        y, backward = jax.vjp(function, *given)
        return y, backward(jnp.ones_like(y)), saved_by(function, *given)

    y, gradients, saved = run("bfloat16")
    assert not [(dtype, size) for dtype, size in saved if size >= BIG and dtype == jnp.float32]
    assert sum(size for _, size in saved if size >= BIG) <= 2 * BIG  # copies of the arguments
    # The same numbers as in float32, but rounded.
    exact, exact_gradients, _ = run("float32")
    for found, expected in zip((y, *gradients), (exact, *exact_gradients), strict=True):
        np.testing.assert_allclose(as_numpy(found), as_numpy(expected, jnp.float32), atol=0.05)
