"""Beam search: the likeliest sequences that can be found by keeping a few at every length.

Sequences are ranked by log-probability / ((5 + n) / 6) ** alpha, n being the number of their
tokens, the end among them: the length penalty of the 2017 paper (Wu et al., 2016).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.decoding import Decode, for_each

NEVER = -1e9  # worse than any sequence, yet finite: sums of it stay numbers


class Beams(NamedTuple):
    """K sequences for each row, the best first, and what they score; NEVER where there is none."""

    tokens_bkn: Array
    scores_bk: Array


class _Search(NamedTuple):
    step: Array
    live: Beams  # scored by plain log-probability: all are of one length
    done: Beams
    logits_mv: Array  # M = B * K: every live sequence is a row of the model's batch
    cache: Any


def length_penalty(tokens: Array | int, alpha: float) -> Array:
    return ((5.0 + jnp.asarray(tokens, jnp.float32)) / 6.0) ** alpha


def beam_search(
    decode: Decode,
    logits_bv: Array,
    positions_b: Array,
    cache: Any,
    *,
    beams: int,
    steps: int,
    alpha: float,
    eos_id: int,
    pad_id: int,
) -> Beams:
    """The best `beams` sequences of at most `steps` tokens behind each row's prompt.

    `logits_bv`, `positions_b` and `cache` are those of the prompts, a row each, as in
    `decoding.advance`. Sequences without an end count when there are no more steps. The search
    is over when in no row a live sequence could still be among the best, however it went on.
    """
    rows, vocab = logits_bv.shape
    # Of twice as many continuations, at most half are ends: enough are left to go on with.
    candidates = min(2 * beams, beams * vocab)
    positions_m = for_each(beams, positions_b)

    def score(sums: Array, tokens: Array | int) -> Array:
        # NEVER must not be divided: it would be above NEVER and pass for a sequence.
        return jnp.where(sums > NEVER / 2, sums / length_penalty(tokens, alpha), NEVER)

    def could_change(search: _Search) -> Array:
        # A log-probability can only fall, and the penalty of the greatest length divides it most.
        best_possible_b = score(search.live.scores_bk[:, 0], steps)
        return (search.step < steps) & (best_possible_b > search.done.scores_bk[:, -1]).any()

    def extend(search: _Search) -> _Search:
        log_probs_mv = jax.nn.log_softmax(search.logits_mv.astype(jnp.float32))
        sums_bkv = search.live.scores_bk[:, :, None] + log_probs_mv.reshape(rows, beams, vocab)
        sums_bc, places_bc = jax.lax.top_k(sums_bkv.reshape(rows, -1), candidates)
        parents_bc, tokens_bc = places_bc // vocab, (places_bc % vocab).astype(jnp.int32)
        tokens_bcn = _rows_of(search.live.tokens_bkn, parents_bc)
        tokens_bcn = tokens_bcn.at[:, :, search.step].set(tokens_bc)
        ends_bc = tokens_bc == eos_id

        # An end counts if it is among the best that could be kept.
        counts_bc = ends_bc & (jnp.arange(candidates) < beams)
        scores_bc = jnp.where(counts_bc, score(sums_bc, search.step + 1), NEVER)
        done = _best(beams, search.done, Beams(tokens_bcn, scores_bc))

        alive_bc = jnp.where(ends_bc, NEVER, sums_bc)
        _, kept_bk = jax.lax.top_k(alive_bc, beams)
        live = Beams(_rows_of(tokens_bcn, kept_bk), _rows_of(alive_bc, kept_bk))
        parents_bk = _rows_of(parents_bc, kept_bk)
        parents_m = (parents_bk + beams * jnp.arange(rows)[:, None]).reshape(-1)
        last_m1 = live.tokens_bkn[:, :, search.step].reshape(-1, 1)
        logits_m1v, cache = decode(
            last_m1, (positions_m + search.step)[:, None], search.cache.of_rows(parents_m)
        )
        return _Search(search.step + 1, live, done, logits_m1v[:, 0], cache)

    nothing = Beams(
        jnp.full((rows, beams, steps), pad_id, jnp.int32), jnp.full((rows, beams), NEVER)
    )
    # All beams start alike: only the first may be extended, or they would stay alike.
    live = nothing._replace(scores_bk=nothing.scores_bk.at[:, 0].set(0.0))
    start = _Search(jnp.zeros((), jnp.int32), live, nothing, *for_each(beams, (logits_bv, cache)))
    search = jax.lax.while_loop(could_change, extend, start)
    unfinished_bk = score(search.live.scores_bk, search.step)
    # Those that were given up are no answers: only the last step makes them so.
    unfinished_bk = jnp.where(search.step < steps, NEVER, unfinished_bk)
    return _best(beams, search.done, search.live._replace(scores_bk=unfinished_bk))


def _best(count: int, *groups: Beams) -> Beams:
    tokens, scores = (jnp.concatenate(arrays, axis=1) for arrays in zip(*groups, strict=True))
    scores_bk, places_bk = jax.lax.top_k(scores, count)
    return Beams(_rows_of(tokens, places_bk), scores_bk)


def _rows_of(array: Array, places_bk: Array) -> Array:
    """The entries of axis 1 at these places, in each row of the batch."""
    places = places_bk.reshape(*places_bk.shape, *(1,) * (array.ndim - 2))
    return jnp.take_along_axis(array, places, axis=1)
