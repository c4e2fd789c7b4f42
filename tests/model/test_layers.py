"""Dense layers applied by one product equal the layers applied one by one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from model.layers import Dense, Norm, activate, apply_together
from tests.tiny import random_params, tiny_config


class Projections(nn.Module):
    """Three layers of different sizes, as in grouped attention, together or one by one."""

    bias: bool
    together: bool

    @nn.compact
    def __call__(self, x_btd):
        config = tiny_config(bias=self.bias)
        query = Dense(config, (4, 3), ("width", "heads", "head_size"), name="query")
        key = Dense(config, (2, 3), ("width", "kv_heads", "head_size"), name="key")
        value = Dense(config, (2, 3), ("width", "kv_heads", "head_size"), name="value")
        layers = (query, key, value)
        return (
            apply_together(x_btd, *layers) if self.together else [layer(x_btd) for layer in layers]
        )


@pytest.mark.parametrize("bias", [True, False])
def test_one_joint_matmul_equals_three(bias):
    x_btd = np.random.default_rng(0).normal(size=(4, 5, 16)).astype(np.float32)
    joint, apart = Projections(bias, True), Projections(bias, False)
    params = random_params(apart, x_btd)
    assert jax.tree.map(np.shape, random_params(joint, x_btd)) == jax.tree.map(np.shape, params)
    found, expected = (model.apply({"params": params}, x_btd) for model in (joint, apart))
    for one, other, heads in zip(found, expected, (4, 2, 2), strict=True):
        assert one.shape == (4, 5, heads, 3)
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_gelu_is_exact_or_the_tanh_form():
    x = np.linspace(-8, 8, 1001)
    exact = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    approximate = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert np.abs(exact - approximate).max() > 1e-4
    x_32 = x.astype(np.float32)
    for name, expected in [("gelu", exact), ("geglu", exact), ("gelu_tanh", approximate)]:
        np.testing.assert_allclose(activate(name, x_32), expected, atol=1e-6)


def test_exact_gelu_keeps_its_negative_tail_in_bfloat16():
    x_16 = jnp.linspace(-4, -1, 200).astype(jnp.bfloat16)
    x = np.asarray(x_16, np.float64)
    found = np.asarray(activate("gelu", x_16), np.float64)
    np.testing.assert_allclose(found, 0.5 * x * (1 + erf(x / np.sqrt(2))), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(("rows", "products"), [(16, 1), (15, 3)])
def test_few_rows_are_not_worth_joining_kernels(rows, products):
    x_btd = np.zeros((1, rows, 16), np.float32)
    model = Projections(bias=True, together=True)
    params = random_params(model, x_btd)
    program = str(jax.make_jaxpr(lambda p: model.apply({"params": p}, x_btd))(params))
    assert program.count("dot_general[") == products


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_by_their_formulas(norm):
    """With an epsilon so large that one left out, squared or outside the root would show."""
    epsilon = 0.1
    layer = Norm(tiny_config(norm=norm, norm_epsilon=epsilon))
    x = np.random.default_rng(0).normal(1.0, 0.5, (3, 16)).astype(np.float32)
    params = random_params(layer, x)
    centred = x - x.mean(-1, keepdims=True) if norm == "layernorm" else x
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    expected = expected * params["scale"] + params.get("bias", 0.0)
    found = layer.apply({"params": params}, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
