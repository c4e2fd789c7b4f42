"""Matmuls in bfloat16 with float32 parameters, whose gradients are never rounded to bfloat16.

With a plain cast of the kernel, each device would round its part of the gradient to bfloat16, and
the sum over devices would be in bfloat16. Here the gradient is summed in the parameter's type, both
inside the matmul and over devices.
"""

import jax
import jax.numpy as jnp
from jax import Array

from model.sharding import constrain


def matmul(x: Array, kernel: Array) -> Array:
    """Returns x @ kernel, computed in the type of x."""
    return x @ kernel if x.dtype == kernel.dtype else _mixed_matmul(x, kernel)


def add_bias(x: Array, bias: Array) -> Array:
    """Returns x + bias, computed in the type of x. The bias is broadcast to the shape of x."""
    return x + bias if x.dtype == bias.dtype else _mixed_add(x, bias)


def embed(table: Array, ids: Array, dtype: str, row_axis: str) -> Array:
    """Looks up rows of a table (rows, D) and casts them; `row_axis` names its first axis."""
    take = _take if table.dtype == jnp.dtype(dtype) else _rounded_take
    return take(table, ids, dtype, row_axis)


@jax.custom_vjp
def _mixed_matmul(x, kernel):
    return x @ kernel.astype(x.dtype)


def _mixed_matmul_forward(x, kernel):
    return _mixed_matmul(x, kernel), (x, kernel)


def _mixed_matmul_backward(saved, gradient):
    x, kernel = saved
    of_x = gradient @ kernel.astype(x.dtype).T
    return of_x, gradient_of_kernel(x, gradient, kernel.dtype)


_mixed_matmul.defvjp(_mixed_matmul_forward, _mixed_matmul_backward)


def gradient_of_kernel(x: Array, gradient: Array, dtype: jnp.dtype) -> Array:
    """Returns the kernel's gradient of x @ kernel, summed over all rows in `dtype`."""
    rows = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())), preferred_element_type=dtype)


@jax.custom_vjp
def _mixed_add(x, bias):
    return x + bias.astype(x.dtype)


def _mixed_add_forward(x, bias):
    return _mixed_add(x, bias), bias


def _mixed_add_backward(bias, gradient):
    shape = (1,) * (gradient.ndim - bias.ndim) + bias.shape
    repeated = [n for n, size in enumerate(shape) if size != gradient.shape[n]]
    return gradient, gradient.astype(bias.dtype).sum(repeated).reshape(bias.shape)


_mixed_add.defvjp(_mixed_add_forward, _mixed_add_backward)


def _take(table, ids, dtype, row_axis):
    # The table's width is gathered before the lookup, as a kernel's is before a matmul. Otherwise
    # the result would be sharded by width over the devices of the batch axis, and the compiler
    # would replicate it to reshard it.
    return jnp.take(constrain(table.astype(dtype), row_axis, None), ids, axis=0)


_rounded_take = jax.custom_vjp(_take, nondiff_argnums=(2, 3))


def _take_forward(table, ids, dtype, row_axis):
    return _take(table, ids, dtype, row_axis), (table, ids)


def _take_backward(dtype, row_axis, saved, gradient):
    table, ids = saved
    of_table = jnp.zeros(table.shape, table.dtype).at[ids].add(gradient.astype(table.dtype))
    return of_table, None


_rounded_take.defvjp(_take_forward, _take_backward)
