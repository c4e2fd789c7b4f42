"""Beam search: keeps the best few sequences at every length.

Sequences are ranked by log-probability / ((5 + n) / 6) ** alpha, where n is the number of tokens
with the end: the length penalty of the 2017 paper (Wu et al., 2016).

The sequences of a row are branches of one tree and share one row of the cache. Each step writes a
token for every beam into it, and a mask shows each beam its own ancestors. So nothing is copied
when one branch replaces another, and prompt and source are stored once for all beams.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from inference.decoding import Decode

NEVER = -1e9  # worse than any sequence, but finite: its sums are no NaN


class Beams(NamedTuple):
    """N sequences for each row, the best first, and their scores; NEVER where there is none."""

    tokens_bnt: Array
    scores_bn: Array


class _Search(NamedTuple):
    step: Array
    live: Beams  # scored by plain log-probability: all are of one length
    done: Beams
    holders_bnt: Array  # the beam that held a live sequence's token t; -1 if there is none yet
    logits_bnv: Array
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
    prompt_slots: int,
    window: int = 0,
    more_eos_ids: Sequence[int] = (),
) -> Beams:
    """The best `beams` sequences of at most `steps` tokens after each row's prompt.

    `logits_bv`, `positions_b` and `cache` are those of the prompts, one row each, as in
    `decoding.advance`. The prompts fill the first `prompt_slots` of the cache, which has room for
    `beams * steps` more tokens. `decode` also gets the slots that each query may see (B, N, S):
    those of its prompt and its ancestors, or the `window` newest of them if that is not 0.

    A sequence ends with `eos_id` or one of `more_eos_ids`, which it keeps. Sequences without an
    end count when there are no more steps. The search ends when no live sequence of any row could
    still become one of the best.
    """
    rows, vocab = logits_bv.shape
    # A beam has at most one continuation per end token, so enough others are left to go on with.
    candidates = min((2 + len(more_eos_ids)) * beams, beams * vocab)
    # The age of a slot in tokens: all slots that one step filled have the same age.
    order_s = jnp.arange(prompt_slots + steps * beams)
    order_s = jnp.minimum(order_s, prompt_slots + (order_s - prompt_slots) // beams)

    def visible(holders_bnt: Array, step: Array) -> Array:
        is_holder_bntn = holders_bnt[..., None] == jnp.arange(beams)
        visible_bns = jnp.pad(
            is_holder_bntn.reshape(rows, beams, -1),
            ((0, 0), (0, 0), (prompt_slots, 0)),
            constant_values=True,
        )
        if window:
            visible_bns &= prompt_slots + step - order_s < window
        return visible_bns

    def score(sums: Array, tokens: Array | int) -> Array:
        # NEVER divided by the penalty would be greater than NEVER, like a sequence's score.
        return jnp.where(sums > NEVER / 2, sums / length_penalty(tokens, alpha), NEVER)

    def could_change(search: _Search) -> Array:
        # A log-probability can only fall, and the penalty of the maximum length is the largest.
        best_possible_b = score(search.live.scores_bn[:, 0], steps)
        return (search.step < steps) & (best_possible_b > search.done.scores_bn[:, -1]).any()

    def extend(search: _Search) -> _Search:
        log_probs_bnv = jax.nn.log_softmax(search.logits_bnv.astype(jnp.float32))
        sums_bnv = search.live.scores_bn[:, :, None] + log_probs_bnv
        # From here on, N of next_* counts candidates, of which there are more than beams.
        next_sums_bn, places_bn = jax.lax.top_k(sums_bnv.reshape(rows, -1), candidates)
        next_parents_bn = places_bn // vocab
        next_tokens_bn = (places_bn % vocab).astype(jnp.int32)
        next_tokens_bnt = _rows_of(search.live.tokens_bnt, next_parents_bn)
        next_tokens_bnt = next_tokens_bnt.at[:, :, search.step].set(next_tokens_bn)
        next_ends_bn = next_tokens_bn == eos_id
        for id in more_eos_ids:
            next_ends_bn |= next_tokens_bn == id

        # An end counts if it is among the best `beams` candidates.
        next_counts_bn = next_ends_bn & (jnp.arange(candidates) < beams)
        next_scores_bn = jnp.where(next_counts_bn, score(next_sums_bn, search.step + 1), NEVER)
        done = _best(beams, search.done, Beams(next_tokens_bnt, next_scores_bn))

        next_alive_bn = jnp.where(next_ends_bn, NEVER, next_sums_bn)
        _, kept_bn = jax.lax.top_k(next_alive_bn, beams)
        live = Beams(_rows_of(next_tokens_bnt, kept_bn), _rows_of(next_alive_bn, kept_bn))
        parents_bn = _rows_of(next_parents_bn, kept_bn)
        holders_bnt = _rows_of(search.holders_bnt, parents_bn)
        holders_bnt = holders_bnt.at[:, :, search.step].set(jnp.arange(beams))
        positions_bn = jnp.broadcast_to(positions_b[:, None] + search.step, (rows, beams))
        logits_bnv, cache = decode(
            live.tokens_bnt[:, :, search.step],
            positions_bn,
            search.cache,
            visible_bts=visible(holders_bnt, search.step),
        )
        return _Search(search.step + 1, live, done, holders_bnt, logits_bnv, cache)

    nothing = Beams(
        jnp.full((rows, beams, steps), pad_id, jnp.int32), jnp.full((rows, beams), NEVER)
    )
    # All beams start equal. Only the first is extended, otherwise they would stay equal.
    live = nothing._replace(scores_bn=nothing.scores_bn.at[:, 0].set(0.0))
    logits_bnv = jnp.broadcast_to(logits_bv[:, None], (rows, beams, vocab))
    holders_bnt = jnp.full((rows, beams, steps), -1, jnp.int32)
    start = _Search(jnp.zeros((), jnp.int32), live, nothing, holders_bnt, logits_bnv, cache)
    search = jax.lax.while_loop(could_change, extend, start)
    unfinished_bn = score(search.live.scores_bn, search.step)
    # Unfinished sequences count only if there are no more steps.
    unfinished_bn = jnp.where(search.step < steps, NEVER, unfinished_bn)
    return _best(beams, search.done, search.live._replace(scores_bn=unfinished_bn))


def _best(count: int, *groups: Beams) -> Beams:
    tokens, scores = (jnp.concatenate(arrays, axis=1) for arrays in zip(*groups, strict=True))
    scores_bn, places_bn = jax.lax.top_k(scores, count)
    return Beams(_rows_of(tokens, places_bn), scores_bn)


def _rows_of(array: Array, places_bn: Array) -> Array:
    """The entries of axis 1 at these places, for each row of the batch."""
    places = places_bn.reshape(*places_bn.shape, *(1,) * (array.ndim - 2))
    return jnp.take_along_axis(array, places, axis=1)
