"""Dropout as a pure function."""

import jax
import jax.numpy as jnp
from jax import Array


def dropout(x: Array, rate: float, key: Array) -> Array:
    """Zeroes entries with probability `rate` and scales up the rest.

    The probability is rounded to a multiple of 1/65536, but never to 0 or 1. Random bits are a
    large part of the cost of a small model's step, so each 32-bit draw serves two entries.
    """
    threshold = min(max(round((1.0 - rate) * 2**16), 1), 2**16 - 1)
    size = x.shape[-1]
    words = jax.random.bits(key, (*x.shape[:-1], (size + 1) // 2), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*x.shape[:-1], -1)[..., :size]
    scale = jnp.asarray(2**16 / threshold, x.dtype)
    return jnp.where(halves < threshold, x * scale, jnp.zeros((), x.dtype))
