"""Matmuls of activations and kernels in 8 bits, forward and backward, with qwix.

Each row of x and each column of the kernel has a scale, which maps its largest magnitude to the end
of the type's range. Scaled values are rounded to the nearest integer or 8-bit float. Products are
summed in int32 or float32 and multiplied by both scales. (qwix replaces values whose scale is below
1e-19 by zero.)

In the backward pass, the gradient of x is also an 8-bit matmul: rows of the incoming gradient with
columns of the transposed kernel. The kernel's gradient is a sum over all tokens, for which rounding
to nearest is too coarse (SwitchBack, arXiv:2304.13013); model/mixed_precision.py computes it.

Nothing is stored in 8 bits: parameters, gradients and checkpoints keep their types.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from model.mixed_precision import gradient_of_kernel

# The types of activations and kernels, and of gradients, which need range more than precision
# (arXiv:2209.05433).
TYPES = {
    "int8": (jnp.int8, jnp.int8),
    "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2),
}
# qwix's calibration: the largest magnitude maps to the end of the range. In int8, plain absmax maps
# it to 127.5, halfway between two integers, so rounding noise would make several devices differ
# from one. This factor maps it to 127.
LARGEST = {
    jnp.int8: f"absmax,{127.5 / 127}",
    jnp.float8_e4m3fn: "absmax",
    jnp.float8_e5m2: "absmax",
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def quantized_matmul(x: Array, kernel: Array, matmul: str) -> Array:
    """Returns x @ kernel, computed in 8 bits, in the type of x; `matmul` is a key of `TYPES`."""
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
    import qwix  # an optional dependency

    def quantized(x: Array, dtype, axes):
        # Scales are always float32: bfloat16 would round a second time.
        x_32, method = x.astype(jnp.float32), LARGEST[dtype]
        return qwix.quantize(x_32, dtype, channelwise_axes=axes, calibration_method=method)

    last = x.ndim - 1
    with jax.numpy_dtype_promotion("standard"):  # qwix multiplies integers by floats
        x_8bit = quantized(x, x_type, range(last))
        kernel_8bit = quantized(kernel, kernel_type, (1,))
        y = qwix.dot_general(x_8bit, kernel_8bit, (((last,), (0,)), ((), ())))
    return y.astype(x.dtype)
