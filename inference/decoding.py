"""Greedy decoding and sampling: from next-token logits to tokens, one at a time.

All functions are pure: the model is the argument `decode`, and its state is the argument `cache`.
The rows of a batch are independent: each ends on its own and has its own random key.
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
    repetition_penalty: float = 1.0  # above 1: makes tokens that the row already has less likely

    @property
    def is_random(self) -> bool:
        return self.temperature > 0


GREEDY = Sampling()


@dataclasses.dataclass(frozen=True)
class Ends:
    """The tokens that end a row, the padding token after the end, and tokens never generated."""

    eos_id: int
    pad_id: int
    stops: tuple[tuple[int, ...], ...] = ()  # token sequences that also end a row
    banned: tuple[int, ...] = ()  # ids that are never generated


class Progress(NamedTuple):
    """The state of decoding a batch."""

    step: Array  # number of tokens generated for each row, including padding
    tokens_bt: Array
    ended_b: Array
    logits_bv: Array  # of the next token
    cache: Any
    occurred_bv: Array | None  # whether a row has a token; None without repetition penalty


def begin(
    logits_bv: Array, cache: Any, *, steps: int, pad_id: int, occurred_bv: Array | None = None
) -> Progress:
    """The state after the prompts, given the logits of the next token and the prompts' cache."""
    rows = len(logits_bv)
    tokens_bt = jnp.full((rows, steps), pad_id, jnp.int32)
    step, ended_b = jnp.zeros((), jnp.int32), jnp.zeros(rows, bool)
    return Progress(step, tokens_bt, ended_b, logits_bv, cache, occurred_bv)


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

    `positions_b` are the positions of the first token after each prompt. `keys_b` is one random key
    per row, or None for greedy decoding. Token n of a row depends on the key of that row and on n,
    not on how the steps are divided into calls.
    """

    def unfinished(progress: Progress) -> Array:
        return (progress.step < until) & ~progress.ended_b.all()

    def generate_token(progress: Progress) -> Progress:
        step = progress.step
        keys_now_b = None
        if sampling.is_random:
            keys_now_b = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_b, step)
        token_b = sample_token(progress.logits_bv, sampling, keys_now_b, progress.occurred_bv)
        token_b = jnp.where(progress.ended_b, ends.pad_id, token_b)
        tokens_bt = progress.tokens_bt.at[:, step].set(token_b)
        logits_b1v, cache = decode(token_b[:, None], (positions_b + step)[:, None], progress.cache)
        occurred_bv = progress.occurred_bv
        if occurred_bv is not None:
            occurred_bv |= jax.nn.one_hot(token_b, occurred_bv.shape[1], dtype=bool)
        return Progress(
            step=step + 1,
            tokens_bt=tokens_bt,
            ended_b=progress.ended_b | has_ended(tokens_bt, step, ends),
            logits_bv=logits_b1v[:, 0],
            cache=cache,
            occurred_bv=occurred_bv,
        )

    return jax.lax.while_loop(unfinished, generate_token, progress)


def sample_token(
    logits_bv: Array, sampling: Sampling, keys_b: Array | None, occurred_bv: Array | None = None
) -> Array:
    """Chooses the next token of every row; returns ids (B,)."""
    logits_bv = adjust_logits(logits_bv, sampling, occurred_bv)
    if not sampling.is_random:
        return fast_argmax(logits_bv)
    return jax.vmap(jax.random.categorical)(keys_b, logits_bv).astype(jnp.int32)


def fast_argmax(logits: Array) -> Array:
    """Argmax over the last axis, the vocabulary; returns the last token if a logit is NaN.

    It uses two simple reductions, which CPUs run twice as fast as argmax.
    """
    vocabulary = logits.shape[-1]
    places_v = jnp.arange(vocabulary, dtype=jnp.int32)
    is_greatest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(is_greatest, places_v, vocabulary - 1).min(axis=-1)


def adjust_logits(logits_bv: Array, sampling: Sampling, occurred_bv: Array | None = None) -> Array:
    """The logits of the distribution that tokens are drawn from, in float32.

    It applies repetition penalty, temperature, top-k, top-p and min-p in the order of the
    transformers library; each step works on the result of the step before. Excluded tokens have
    the logit -inf. The likeliest token is never excluded.
    """
    logits_bv = logits_bv.astype(jnp.float32)
    if sampling.repetition_penalty != 1:
        # This lowers positive and negative logits alike (Keskar et al., 2019).
        penalty = sampling.repetition_penalty
        lowered_bv = jnp.where(logits_bv > 0, logits_bv / penalty, logits_bv * penalty)
        logits_bv = jnp.where(occurred_bv, lowered_bv, logits_bv)
    if not sampling.is_random:
        return logits_bv
    logits_bv /= sampling.temperature
    if 0 < sampling.top_k < logits_bv.shape[-1]:
        likeliest_bn, _ = jax.lax.top_k(logits_bv, sampling.top_k)
        logits_bv = jnp.where(logits_bv < likeliest_bn[:, -1:], -jnp.inf, logits_bv)
    if sampling.top_p < 1:
        sorted_bv = -jnp.sort(-logits_bv, axis=-1)
        probs_bv = jax.nn.softmax(sorted_bv, axis=-1)
        # A token stays if all likelier tokens together have a probability below top_p.
        stays_bv = jnp.cumsum(probs_bv, axis=-1) - probs_bv < sampling.top_p
        least_b1 = jnp.where(stays_bv, sorted_bv, jnp.inf).min(axis=-1, keepdims=True)
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    if sampling.min_p > 0:
        least_b1 = logits_bv.max(axis=-1, keepdims=True) + jnp.log(sampling.min_p)
        logits_bv = jnp.where(logits_bv < least_b1, -jnp.inf, logits_bv)
    return logits_bv


def has_ended(tokens_bt: Array, step: Array, ends: Ends) -> Array:
    """Whether each row's token at `step` is its end token or completes a stop sequence (B,)."""
    ended_b = tokens_bt[:, step] == ends.eos_id
    for stop in ends.stops:
        places = step - len(stop) + 1 + jnp.arange(len(stop))
        matches_bt = tokens_bt[:, jnp.maximum(places, 0)] == jnp.asarray(stop, jnp.int32)
        ended_b |= (matches_bt & (places >= 0)).all(axis=1)
    return ended_b


def repeat_rows(times: int, tree: Any) -> Any:
    """Repeats every row of every array, copies next to each other. Scalars stay as they are."""
    if times == 1:
        return tree
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0) if x.ndim else x, tree)
