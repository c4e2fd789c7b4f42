"""Speculative decoding: a small model drafts tokens, and the large one checks several in one call.

The result equals that of the large model alone: the same tokens with greedy decoding, the same
distribution with sampling (Leviathan et al., 2023; Chen et al., 2023).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from inference.decoding import Decode, Ends, Sampling, adjust_logits, fast_argmax, has_ended


class _State(NamedTuple):
    """The state after a number of rounds."""

    rounds: Array
    counts_b: Array  # number of tokens that each row has
    tokens_bt: Array
    ended_b: Array
    last_b: Array  # the newest token, which neither cache holds yet
    cache: Any
    draft_cache: Any


class Speculated(NamedTuple):
    """The tokens, and how many rounds they took."""

    tokens_bt: Array
    rounds: Array  # calls of the large model after the prompt


def speculate(
    decode: Decode,
    draft: Decode,
    logits_bv: Array,
    positions_b: Array,
    cache: Any,
    draft_cache: Any,
    keys_b: Array | None,
    *,
    ahead: int,
    steps: int,
    sampling: Sampling,
    ends: Ends,
) -> Speculated:
    """Generates up to `steps` tokens after each row's prompt.

    `decode` is the large model and `draft` the small one; both caches hold the prompts and have
    room for `steps` + `ahead` tokens more. `logits_bv` and `positions_b` are the logits and the
    position of the first token after each prompt. `keys_b` is one random key per row, or None for
    greedy decoding.

    Each round drafts `ahead` tokens, and the call that checks them adds one more. Rows accept
    different numbers of tokens, so each row has its own index into the caches. The next round
    overwrites rejected tokens.
    """
    rows = len(logits_bv)
    rows_b = jnp.arange(rows)

    def keys_of(purpose: int, number: Array) -> Array | None:
        """Random keys of the rows for one purpose; None for greedy decoding."""
        if not sampling.is_random:
            return None
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        return fold(fold(keys_b, purpose), number)

    def probabilities(logits: Array) -> Array:
        """The distribution (B, T, V) that tokens are drawn from; one-hot for greedy decoding."""
        if sampling.is_random:
            flat = logits.reshape(-1, logits.shape[-1])
            return jax.nn.softmax(adjust_logits(flat, sampling)).reshape(logits.shape)
        return jax.nn.one_hot(fast_argmax(logits), logits.shape[-1])

    def draw(keys_b: Array | None, probs_bv: Array) -> Array:
        if keys_b is None:
            return fast_argmax(probs_bv)
        return jax.vmap(jax.random.categorical)(keys_b, jnp.log(probs_bv)).astype(jnp.int32)

    def run_round(state: _State) -> _State:
        newest_b = positions_b + state.counts_b - 1
        # Drafts may go beyond `steps` tokens, but not beyond the model's positions.
        positions_tb = jnp.minimum(
            newest_b + jnp.arange(ahead + 1)[:, None], positions_b + steps - 1
        )

        def draft_one(carry, number):
            token_b, cache = carry
            logits_b1v, cache = draft(token_b[:, None], positions_tb[number][:, None], cache)
            probs_bv = probabilities(logits_b1v)[:, 0]
            next_b = draw(keys_of(0, state.rounds * (ahead + 1) + number), probs_bv)
            return (next_b, cache), (next_b, probs_bv)

        # One call more than drafted tokens puts the last drafted token into the draft's cache.
        (_, draft_cache), (drafted_tb, draft_probs_tbv) = jax.lax.scan(
            draft_one, (state.last_b, state.draft_cache), jnp.arange(ahead + 1)
        )
        drafted_bt = drafted_tb[:ahead].T
        draft_probs_btv = jnp.moveaxis(draft_probs_tbv[:ahead], 0, 1)

        given_bt = jnp.concatenate([state.last_b[:, None], drafted_bt], axis=1)
        logits_btv, cache = decode(given_bt, positions_tb.T, state.cache)
        probs_btv = probabilities(logits_btv)

        # If all tokens before it were accepted, a token is accepted with the probability
        # p / q, where p is its probability in the large model and q that in the draft model.
        here = rows_b[:, None], jnp.arange(ahead), drafted_bt
        ratios_bt = probs_btv[here] / draft_probs_btv[here]
        thresholds_bt = jnp.full((rows, ahead), 0.5)
        if sampling.is_random:
            uniform = jax.vmap(lambda key: jax.random.uniform(key, (ahead,)))
            thresholds_bt = uniform(keys_of(1, state.rounds))
        accepted_bt = jnp.cumprod(thresholds_bt < ratios_bt, axis=1)
        accepted_b = accepted_bt.sum(axis=1)

        # The token after the accepted ones is drawn from the positive part of the difference of
        # the two distributions; after a fully accepted draft, from the large model's distribution.
        none_b1v = jnp.zeros_like(draft_probs_btv[:, :1])
        subtracted_btv = jnp.concatenate([draft_probs_btv, none_b1v], axis=1)
        difference_bv = jnp.maximum(probs_btv - subtracted_btv, 0)[rows_b, accepted_b]
        final_b = draw(keys_of(2, state.rounds), difference_bv)

        new_bt = jnp.pad(drafted_bt, ((0, 0), (0, 1))).at[rows_b, accepted_b].set(final_b)
        tokens_bt, ended_b, counts_b = state.tokens_bt, state.ended_b, state.counts_b
        for number in range(ahead + 1):
            open_b = ~ended_b & (number <= accepted_b) & (counts_b < steps)
            place_b = jnp.minimum(counts_b, steps - 1)
            token_b = jnp.where(open_b, new_bt[:, number], tokens_bt[rows_b, place_b])
            tokens_bt = tokens_bt.at[rows_b, place_b].set(token_b)
            ended_b |= open_b & _ended_at(tokens_bt, place_b, ends)
            counts_b += open_b.astype(jnp.int32)
        index_b = cache.index - (ahead + 1) + accepted_b + 1
        return _State(
            rounds=state.rounds + 1,
            counts_b=counts_b,
            tokens_bt=tokens_bt,
            ended_b=ended_b | (counts_b == steps),
            last_b=final_b,
            cache=cache.replace(index=index_b),
            draft_cache=draft_cache.replace(index=index_b),
        )

    def unfinished(state: _State) -> Array:
        return ~state.ended_b.all()

    first_b = draw(keys_of(3, jnp.zeros((), jnp.int32)), probabilities(logits_bv[:, None])[:, 0])
    tokens_bt = jnp.full((rows, steps), ends.pad_id, jnp.int32).at[:, 0].set(first_b)
    index_b = jnp.broadcast_to(cache.index, (rows,))
    start = _State(
        rounds=jnp.zeros((), jnp.int32),
        counts_b=jnp.ones(rows, jnp.int32),
        tokens_bt=tokens_bt,
        ended_b=has_ended(tokens_bt, jnp.zeros((), jnp.int32), ends) | (steps == 1),
        last_b=first_b,
        cache=cache.replace(index=index_b),
        draft_cache=draft_cache.replace(index=index_b),
    )
    state = jax.lax.while_loop(unfinished, run_round, start)
    return Speculated(state.tokens_bt, state.rounds)


def _ended_at(tokens_bt: Array, places_b: Array, ends: Ends) -> Array:
    return jax.vmap(lambda row, place: has_ended(row[None], place, ends)[0])(tokens_bt, places_b)
