"""Beam search: keeps the best few sequences at every length.

Sequences are ranked by log-probability / ((5 + n) / 6) ** alpha, where n is the number of tokens
including the end token. This is the length penalty of the 2017 paper (Wu et al., 2016).

The sequences of a row are branches of one tree and share one row of the cache. Each step writes one
token per beam into it, and a mask lets each beam attend to its own ancestors only. So nothing is
copied when one branch replaces another, and prompt and source are stored once for all beams.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from inference.decoding import Decode

NEVER = -1e9  # a score below that of any sequence; finite, so that adding to it gives no NaN


class Beams(NamedTuple):
    """N sequences per row, the best first, and their scores; NEVER marks an empty place."""

    tokens_bnt: Array
    scores_bn: Array


class _Search(NamedTuple):
    """The state of the search after `step` tokens."""

    step: Array
    live: Beams  # scored by plain log-probability, because all have the same length
    done: Beams
    beams_bnt: Array  # which beam wrote token t of a live sequence; -1: not yet written
    logits_bnv: Array
    cache: Any


def length_penalty(tokens: Array | int, alpha: float) -> Array:
    """Returns the divisor of the log-probability of a sequence with this many tokens."""
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
    """Finds the best `beams` sequences of at most `steps` tokens after each row's prompt.

    Args:
      decode: the model. It also gets `visible_bts` (B, N, S), the slots that each beam may attend
        to: its prompt and its ancestors, or only the newest `window` of these.
      logits_bv: logits of the first token after each prompt.
      positions_b: position of the first token after each prompt.
      cache: holds the prompts in its first `prompt_slots` slots, one row each, and has room for
        `beams * steps` more tokens.
      beams: sequences to keep for each row, and to return.
      steps: the most tokens of a sequence.
      alpha: exponent of the length penalty.
      eos_id, more_eos_ids: tokens that end a sequence; the sequence includes its end token.
      pad_id: fills a sequence after its end.
      window: 0 means that a beam attends to all of its ancestors.

    Returns:
      The best sequences of each row. Sequences without an end token take part only if the search
      reaches `steps` tokens. It stops earlier when no live sequence of any row can still become
      one of the best.
    """
    rows, vocab = logits_bv.shape
    # Each beam has at most one candidate per end token, so at least `beams` candidates can go on.
    candidates = min((2 + len(more_eos_ids)) * beams, beams * vocab)
    # The index in the sequence of the token in each slot: the slots of one step share an index.
    order_s = jnp.arange(prompt_slots + steps * beams)
    order_s = jnp.minimum(order_s, prompt_slots + (order_s - prompt_slots) // beams)

    def visible(beams_bnt: Array, step: Array) -> Array:
        is_ancestor_bntn = beams_bnt[..., None] == jnp.arange(beams)
        visible_bns = jnp.pad(
            is_ancestor_bntn.reshape(rows, beams, -1),
            ((0, 0), (0, 0), (prompt_slots, 0)),
            constant_values=True,
        )
        if window:
            visible_bns &= prompt_slots + step - order_s < window
        return visible_bns

    def score(log_probs: Array, tokens: Array | int) -> Array:
        # NEVER stays NEVER: divided by the penalty, it would rank above an empty place.
        scores = log_probs / length_penalty(tokens, alpha)
        return jnp.where(log_probs > NEVER / 2, scores, NEVER)

    def could_change(search: _Search) -> Array:
        # An upper bound: log-probabilities only fall, and the last length has the largest penalty.
        best_possible_b = score(search.live.scores_bn[:, 0], steps)
        return (search.step < steps) & (best_possible_b > search.done.scores_bn[:, -1]).any()

    def extend(search: _Search) -> _Search:
        token_log_probs_bnv = jax.nn.log_softmax(search.logits_bnv.astype(jnp.float32))
        log_probs_bnv = search.live.scores_bn[:, :, None] + token_log_probs_bnv
        # In next_*, the axis N has `candidates` entries, more than there are beams.
        next_log_probs_bn, places_bn = jax.lax.top_k(log_probs_bnv.reshape(rows, -1), candidates)
        next_parents_bn = places_bn // vocab
        next_tokens_bn = (places_bn % vocab).astype(jnp.int32)
        next_tokens_bnt = _take(search.live.tokens_bnt, next_parents_bn)
        next_tokens_bnt = next_tokens_bnt.at[:, :, search.step].set(next_tokens_bn)
        next_ends_bn = next_tokens_bn == eos_id
        for id in more_eos_ids:
            next_ends_bn |= next_tokens_bn == id

        # A finished sequence counts only if it is among the best `beams` candidates.
        next_counts_bn = next_ends_bn & (jnp.arange(candidates) < beams)
        next_scores_bn = jnp.where(next_counts_bn, score(next_log_probs_bn, search.step + 1), NEVER)
        done = _best(beams, search.done, Beams(next_tokens_bnt, next_scores_bn))

        next_live_bn = jnp.where(next_ends_bn, NEVER, next_log_probs_bn)
        _, top_bn = jax.lax.top_k(next_live_bn, beams)
        live = Beams(_take(next_tokens_bnt, top_bn), _take(next_live_bn, top_bn))
        parents_bn = _take(next_parents_bn, top_bn)
        beams_bnt = _take(search.beams_bnt, parents_bn)
        beams_bnt = beams_bnt.at[:, :, search.step].set(jnp.arange(beams))
        positions_bn = jnp.broadcast_to(positions_b[:, None] + search.step, (rows, beams))
        logits_bnv, cache = decode(
            live.tokens_bnt[:, :, search.step],
            positions_bn,
            search.cache,
            visible_bts=visible(beams_bnt, search.step),
        )
        return _Search(search.step + 1, live, done, beams_bnt, logits_bnv, cache)

    empty = Beams(jnp.full((rows, beams, steps), pad_id, jnp.int32), jnp.full((rows, beams), NEVER))
    # Only the first beam starts as a sequence: equal beams would stay equal.
    live = empty._replace(scores_bn=empty.scores_bn.at[:, 0].set(0.0))
    logits_bnv = jnp.broadcast_to(logits_bv[:, None], (rows, beams, vocab))
    beams_bnt = jnp.full((rows, beams, steps), -1, jnp.int32)
    start = _Search(jnp.zeros((), jnp.int32), live, empty, beams_bnt, logits_bnv, cache)
    search = jax.lax.while_loop(could_change, extend, start)
    unfinished_bn = score(search.live.scores_bn, search.step)
    # Unfinished sequences count only if the search used all steps.
    unfinished_bn = jnp.where(search.step < steps, NEVER, unfinished_bn)
    return _best(beams, search.done, search.live._replace(scores_bn=unfinished_bn))


def _best(count: int, *groups: Beams) -> Beams:
    """The `count` best sequences of each row among all groups."""
    tokens, scores = (jnp.concatenate(arrays, axis=1) for arrays in zip(*groups, strict=True))
    scores_bn, places_bn = jax.lax.top_k(scores, count)
    return Beams(_take(tokens, places_bn), scores_bn)


def _take(array: Array, places_bn: Array) -> Array:
    """The entries of axis 1 at `places_bn`, the indices for each row of the batch."""
    places = places_bn.reshape(*places_bn.shape, *(1,) * (array.ndim - 2))
    return jnp.take_along_axis(array, places, axis=1)
