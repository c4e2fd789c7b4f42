"""Products of activations with kernels in 8 bits, forward and backward, by qwix.

Each row of x and each column of the kernel is divided by a scale of its own, which takes its
largest magnitude to the end of the type's range, and rounded: to the nearest integer, or to the
nearest float of 8 bits. Their products are summed in int32, or in float32, and multiplied by both
scales. (To qwix, a scale below 1e-19 is none: what is as small as that becomes zero.)

In the backward pass, the gradient of x is such a product again, of the rows of the gradient that
arrives with the columns of the transposed kernel. The gradient of the kernel is not: it is a sum
over all tokens, for which rounding to nearest is too coarse (SwitchBack, arXiv:2304.13013). It is
computed and summed just as in model/mixed_precision.py.

Nothing is kept in 8 bits: parameters, gradients and checkpoints are what they are without.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from model.mixed_precision import gradient_of_kernel

# Of activations and kernels, and of gradients, which need range more than precision
# (arXiv:2209.05433).
TYPES = {
    "int8": (jnp.int8, jnp.int8),
    "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2),
}
# What is taken to the end of the range, in qwix's words: the largest magnitude. In int8 absmax
# alone would take it to 127.5, just between two integers: its last digit would decide between
# them, and several devices would compute otherwise than one. This takes it to 127.
LARGEST = {
    jnp.int8: f"absmax,{127.5 / 127}",
    jnp.float8_e4m3fn: "absmax",
    jnp.float8_e5m2: "absmax",
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def quantized_matmul(x: Array, kernel: Array, matmul: str) -> Array:
    """x @ kernel in 8 bits, given in the type of x; `matmul` is one of `TYPES`."""
    narrow, _ = TYPES[matmul]
    return _multiply(x, narrow, kernel, narrow)


def _forward(x, kernel, matmul):
    return quantized_matmul(x, kernel, matmul), (x, kernel)


def _backward(matmul, saved, gradient):
    x, kernel = saved
    narrow, of_gradients = TYPES[matmul]
    of_x = _multiply(gradient, of_gradients, kernel.T, narrow)
    return of_x, gradient_of_kernel(x, gradient, kernel.dtype)


quantized_matmul.defvjp(_forward, _backward)


def _multiply(x: Array, x_type, kernel: Array, kernel_type) -> Array:
    import qwix  # here, because only who asks for it has to have it

    def quantized(x: Array, dtype, axes):
        # Scales are found in float32 whatever x is: in bfloat16 they would be a second rounding.
        x_32, method = x.astype(jnp.float32), LARGEST[dtype]
        return qwix.quantize(x_32, dtype, channelwise_axes=axes, calibration_method=method)

    last = x.ndim - 1
    with jax.numpy_dtype_promotion("standard"):  # qwix multiplies integers by floats
        x_8bit = quantized(x, x_type, range(last))
        kernel_8bit = quantized(kernel, kernel_type, (1,))
        y = qwix.dot_general(x_8bit, kernel_8bit, (((last,), (0,)), ((), ())))
    return y.astype(x.dtype)
