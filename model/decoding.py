"""Turning next-token logits into text. Pure functions: the model comes in as `decode`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Decode = Callable[[Array, Array, Any], tuple[Array, Any]]


def pick(logits_bv: Array, temperature: float, key: Array | None) -> Array:
    """The likeliest token, or one drawn from the softened distribution."""
    if not temperature:
        return jnp.argmax(logits_bv, axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, logits_bv.astype(jnp.float32) / temperature).astype(
        jnp.int32
    )


def generate(
    decode: Decode,
    logits_bv: Array,
    positions_b: Array,
    cache: Any,
    *,
    steps: int,
    eos_id: int,
    pad_id: int,
    temperature: float = 0.0,
    key: Array | None = None,
) -> Array:
    """`steps` tokens for every row, (B, steps), padded behind the end-of-sequence token.

    `logits_bv` are those behind the prompt, whose keys and values `cache` holds, and
    `positions_b` is where the next token of each row stands. `decode` takes tokens (B, 1), their
    positions (B, 1) and a cache to logits (B, 1, V) and the next cache. Stops early when every
    row has ended.
    """
    batch = logits_bv.shape[0]
    keys = jax.random.split(key, steps) if temperature else jnp.zeros(steps)

    def unfinished(carry):
        step, _, ended_b, _, _ = carry
        return (step < steps) & ~ended_b.all()

    def advance(carry):
        step, tokens_bn, ended_b, logits_bv, cache = carry
        token_b = pick(logits_bv, temperature, keys[step])
        token_b = jnp.where(ended_b, pad_id, token_b)
        tokens_bn = tokens_bn.at[:, step].set(token_b)
        logits_b1v, cache = decode(token_b[:, None], (positions_b + step)[:, None], cache)
        return step + 1, tokens_bn, ended_b | (token_b == eos_id), logits_b1v[:, 0], cache

    tokens_bn = jnp.full((batch, steps), pad_id, jnp.int32)
    start = (jnp.int32(0), tokens_bn, jnp.zeros(batch, bool), logits_bv, cache)
    return jax.lax.while_loop(unfinished, advance, start)[1]
