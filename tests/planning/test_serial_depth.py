"""The longest chain of matmuls and loop iterations in compiled programs, counted by hand."""

import jax
import jax.numpy as jnp
import pytest

from planning import hlo
from planning.serial_depth import serial_depth

SQUARE = jax.ShapeDtypeStruct((24, 24), jnp.float32)


def chain(x, kernel):
    return jnp.tanh(jnp.tanh(x @ kernel) @ kernel) @ kernel


def side_by_side(x, kernel):
    return (x @ kernel) * (kernel @ x) * (x @ x)


def in_a_scan(x, kernel):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), None), x, length=7)[0] @ kernel


def without_matmuls(x, kernel):
    return jax.lax.scan(lambda x, _: (jnp.sin(x * kernel), None), x, length=9)[0]


@pytest.mark.parametrize(
    "function, depth",
    [(chain, 3), (side_by_side, 1), (in_a_scan, 8), (without_matmuls, 9), (jnp.add, 0)],
)
def test_matmuls_that_wait_for_one_another(function, depth):
    text = jax.jit(function).lower(SQUARE, SQUARE).compile().as_text()
    assert serial_depth(hlo.parse(text)) == depth


def test_gradients_double_the_chain():
    gradient = jax.grad(lambda x, kernel: in_a_scan(x, kernel).sum())
    text = jax.jit(gradient).lower(SQUARE, SQUARE).compile().as_text()
    # The gradient of the last product is a constant times the kernel, and waits for nothing.
    assert serial_depth(hlo.parse(text)) == 7 + 7
