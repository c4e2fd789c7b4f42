"""Greedy decoding and sampling: from next-token logits to tokens, one at a time.

Pure functions: the model is the argument `decode`, its state the argument `cache`. Rows of a batch
are independent: each has its own end and its own random key.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# Tokens (B, T), their positions (B, T) and a cache -> logits (B, T, V) and the next cache.
Decode = Callable[[Array, Array, Any], tuple[Array, Any]]


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The default is greedy."""

    temperature: float = 0.0  # 0: greedy; 1: the model's distribution; above 1: flatter
    top_k: int = 0  # sample from the k likeliest tokens; 0: all
    top_p: float = 1.0  # sample from the fewest tokens that together have this probability
    min_p: float = 0.0  # sample from tokens with at least this share of the top probability
    repetition_penalty: float = 1.0  # above 1: lowers tokens that the row already has

    @property
    def is_random(self) -> bool:
        return self.temperature > 0


GREEDY = Sampling()


@dataclasses.dataclass(frozen=True)
class Ends:
    """What ends a row, and the padding after its end."""

    eos_id: int
    pad_id: int
    stops: tuple[tuple[int, ...], ...] = ()  # token sequences that also end a row


class Progress(NamedTuple):
    """The state of decoding a batch."""

    step: Array  # tokens generated for every row, padding included
    tokens_bt: Array
    ended_b: Array
    logits_bv: Array  # of the next token
    cache: Any
    seen_bv: Array | None  # which tokens a row already has; None without repetition penalty


def begin(
    logits_bv: Array, cache: Any, *, steps: int, pad_id: int, seen_bv: Array | None = None
) -> Progress:
    """The state after the prompts: `logits_bv` of the next token, `cache` with the prompts."""
    rows = len(logits_bv)
    tokens_bt = jnp.full((rows, steps), pad_id, jnp.int32)
    step, ended_b = jnp.zeros((), jnp.int32), jnp.zeros(rows, bool)
    return Progress(step, tokens_bt, ended_b, logits_bv, cache, seen_bv)


def advance(
    decode: Decode,
    progress: Progress,
    positions_b: Array,
    keys_b: Array | None,
    *,
    until: Array | int,
    sampling: Sampling,
    ends: Ends,
) -> Progress:
    """Generates tokens up to step `until`, or until every row has ended.

    `positions_b` are the positions of the first token after each prompt. Token n of row b depends
    on the key of row b and on n, not on how the steps are divided into calls.
    """

    def unfinished(progress: Progress) -> Array:
        return (progress.step < until) & ~progress.ended_b.all()

    def generate_token(progress: Progress) -> Progress:
        step = progress.step
        keys_now_b = None
        if sampling.is_random:
            keys_now_b = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_b, step)
        token_b = sample_token(progress.logits_bv, sampling, keys_now_b, progress.seen_bv)
        token_b = jnp.where(progress.ended_b, ends.pad_id, token_b)
        tokens_bt = progress.tokens_bt.at[:, step].set(token_b)
        logits_b1v, cache = decode(token_b[:, None], (positions_b + step)[:, None], progress.cache)
        seen_bv = progress.seen_bv
        if seen_bv is not None:
            seen_bv |= jax.nn.one_hot(token_b, seen_bv.shape[1], dtype=bool)
        return Progress(
            step=step + 1,
            tokens_bt=tokens_bt,
            ended_b=progress.ended_b | has_ended(tokens_bt, step, ends),
            logits_bv=logits_b1v[:, 0],
            cache=cache,
            seen_bv=seen_bv,
        )

    return jax.lax.while_loop(unfinished, generate_token, progress)


def sample_token(
    logits_bv: Array, sampling: Sampling, keys_b: Array | None, seen_bv: Array | None = None
) -> Array:
    """The next token of every row."""
    logits_bv = adjust_logits(logits_bv, sampling, seen_bv)
    if not sampling.is_random:
        return fast_argmax(logits_bv)
    return jax.vmap(jax.random.categorical)(keys_b, logits_bv).astype(jnp.int32)


def fast_argmax(logits: Array) -> Array:
    """Argmax over the vocabulary, the last axis; the last token if a logit is NaN.

    Two simple reductions, which CPUs run twice as fast as argmax.
    """
    vocabulary = logits.shape[-1]
    places_v = jnp.arange(vocabulary, dtype=jnp.int32)
    is_greatest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(is_greatest, places_v, vocabulary - 1).min(axis=-1)


def adjust_logits(logits_bv: Array, sampling: Sampling, seen_bv: Array | None = None) -> Array:
    """The logits of the distribution that tokens are drawn from, in float32.

    Penalty, temperature, then top-k, top-p and min-p, each on what the one before has left: the
    order of the transformers library. The likeliest token always stays.
    """
    logits_bv = logits_bv.astype(jnp.float32)
    if sampling.repetition_penalty != 1:
        # Lowers positive and negative logits (Keskar et al., 2019).
        penalty = sampling.repetition_penalty
        less_bv = jnp.where(logits_bv > 0, logits_bv / penalty, logits_bv * penalty)
        logits_bv = jnp.where(seen_bv, less_bv, logits_bv)
    if not sampling.is_random:
        return logits_bv
    logits_bv /= sampling.temperature
    if 0 < sampling.top_k < logits_bv.shape[-1]:
        likeliest_bn, _ = jax.lax.top_k(logits_bv, sampling.top_k)
        logits_bv = jnp.where(logits_bv < likeliest_bn[:, -1:], -jnp.inf, logits_bv)
    if sampling.top_p < 1:
        sorted_bv = -jnp.sort(-logits_bv, axis=-1)
        shares_bv = jax.nn.softmax(sorted_bv, axis=-1)
        # A token stays if the likelier ones together have less than top_p.
        stays_bv = jnp.cumsum(shares_bv, axis=-1) - shares_bv < sampling.top_p
        least_b1 = jnp.where(stays_bv, sorted_bv, jnp.inf).min(axis=-1, keepdims=True)
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    if sampling.min_p > 0:
        least_b1 = logits_bv.max(axis=-1, keepdims=True) + jnp.log(sampling.min_p)
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    return logits_bv


def has_ended(tokens_bt: Array, step: Array, ends: Ends) -> Array:
    """Whether a row's token at `step` is its end, or completes a stop sequence."""
    ended_b = tokens_bt[:, step] == ends.eos_id
    for stop in ends.stops:
        places = step - len(stop) + 1 + jnp.arange(len(stop))
        matches_bt = tokens_bt[:, jnp.maximum(places, 0)] == jnp.asarray(stop, jnp.int32)
        ended_b |= (matches_bt & (places >= 0)).all(axis=1)
    return ended_b


def repeat_rows(times: int, tree: Any) -> Any:
    """Every row of every array repeated, copies side by side. Scalars stay as they are."""
    if times == 1:
        return tree
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0) if x.ndim else x, tree)
