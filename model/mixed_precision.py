"""Matmuls in bfloat16 with float32 parameters, whose gradients are never rounded to bfloat16.

With a plain cast of the kernel, each device would round its part of the gradient to bfloat16, and
the sum over devices would be in bfloat16. Here the gradient is summed in the parameter's type, both
inside the matmul and over devices.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from model.sharding import constrain


def keep_inputs(function: Callable[..., Array], x: Array, *others: Array | None) -> Array:
    """Returns function(x, *others), of which the backward pass keeps only these arguments.

    For pointwise functions and norms of bfloat16 that compute in float32: what they compute on the
    way takes twice the memory of x each time, and is quickly computed again. In float32, what is
    kept is left to jax.
    """
    if x.dtype == jnp.float32:
        return function(x, *others)
    # Blocks run in a scan, which already prevents common-subexpression elimination.
    return jax.checkpoint(function, prevent_cse=False)(x, *others)


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


def grouped_matmul(x: Array, kernel: Array, sizes_e: Array | None) -> Array:
    """Returns x times the matrix of its group, of a kernel (E, inputs, outputs), in the type of x.

    x is (E, rows, inputs), one part for each group. Or it is (rows, inputs), and groups are runs of
    `sizes_e` rows; rows after them are undefined.
    """
    if sizes_e is None:
        return _batched_matmul(x, kernel)
    return _ragged_matmul(x, kernel, sizes_e)


@jax.custom_vjp
def _batched_matmul(x, kernel):
    return x @ kernel.astype(x.dtype)


def _batched_matmul_forward(x, kernel):
    return _batched_matmul(x, kernel), (x, kernel)


def _batched_matmul_backward(saved, gradient):
    x, kernel = saved
    of_x = gradient @ kernel.astype(x.dtype).swapaxes(1, 2)
    of_kernel = jax.lax.dot_general(
        x, gradient, (((1,), (1,)), ((0,), (0,))), preferred_element_type=kernel.dtype
    )
    return of_x, of_kernel


_batched_matmul.defvjp(_batched_matmul_forward, _batched_matmul_backward)


@jax.custom_vjp
def _ragged_matmul(x, kernel, sizes_e):
    return jax.lax.ragged_dot(x, kernel.astype(x.dtype), sizes_e)


def _ragged_matmul_forward(x, kernel, sizes_e):
    return _ragged_matmul(x, kernel, sizes_e), (x, kernel, sizes_e)


def _ragged_matmul_backward(saved, gradient):
    x, kernel, sizes_e = saved
    of_x = jax.lax.ragged_dot(gradient, kernel.astype(x.dtype).swapaxes(1, 2), sizes_e)
    of_kernel = jax.lax.ragged_dot_general(
        x, gradient, sizes_e, GROUPS_ARE_ROWS, preferred_element_type=kernel.dtype
    )
    return of_x, of_kernel, None


_ragged_matmul.defvjp(_ragged_matmul_forward, _ragged_matmul_backward)
# Rows are contracted, group by group.
GROUPS_ARE_ROWS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


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
