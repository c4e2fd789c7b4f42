"""Speculative decoding: a small model drafts tokens, the large one checks several in one call.

The result is that of the large model alone: the same tokens when greedy, the same distribution
when sampling (Leviathan et al., 2023; Chen et al., 2023).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from inference.decoding import Decode, Ends, Sampling, adjust_logits, fast_argmax, has_ended


class _State(NamedTuple):
    rounds: Array
    counts_b: Array  # tokens of each row so far
    tokens_bt: Array
    ended_b: Array
    last_b: Array  # the newest token, which is in neither cache
    cache: Any
    draft_cache: Any


class Speculated(NamedTuple):
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
    """Generates `steps` tokens after each row's prompt, which is in both caches.

    Each round drafts `ahead` tokens; the checking call adds one more. Rows accept different
    numbers of tokens, so each row has its own index into the caches. The next round overwrites
    rejected tokens. The caches need room for `steps` + `ahead` tokens.
    """
    rows = len(logits_bv)
    everyone = jnp.arange(rows)

    def keys_of(purpose: int, number: Array) -> Array | None:
        if not sampling.is_random:
            return None
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        return fold(fold(keys_b, purpose), number)

    def probabilities(logits: Array) -> Array:
        """The distribution (B, T, V) that tokens are drawn from; one-hot when greedy."""
        if sampling.is_random:
            flat = logits.reshape(-1, logits.shape[-1])
            return jax.nn.softmax(adjust_logits(flat, sampling)).reshape(logits.shape)
        return jax.nn.one_hot(fast_argmax(logits), logits.shape[-1])

    def draw(keys_b: Array | None, shares_bv: Array) -> Array:
        if keys_b is None:
            return fast_argmax(shares_bv)
        return jax.vmap(jax.random.categorical)(keys_b, jnp.log(shares_bv)).astype(jnp.int32)

    def a_round(state: _State) -> _State:
        newest_b = positions_b + state.counts_b - 1
        # Drafts may go beyond the last token, but not beyond the model's positions.
        positions_tb = jnp.minimum(
            newest_b + jnp.arange(ahead + 1)[:, None], positions_b + steps - 1
        )

        def draft_one(carry, number):
            token_b, cache = carry
            logits_b1v, cache = draft(token_b[:, None], positions_tb[number][:, None], cache)
            shares_bv = probabilities(logits_b1v)[:, 0]
            next_b = draw(keys_of(0, state.rounds * (ahead + 1) + number), shares_bv)
            return (next_b, cache), (next_b, shares_bv)

        # One more call than drafted tokens, to put the last token into the draft's cache.
        (_, draft_cache), (drafted_tb, draft_shares_tbv) = jax.lax.scan(
            draft_one, (state.last_b, state.draft_cache), jnp.arange(ahead + 1)
        )
        drafted_bt = drafted_tb[:ahead].T
        draft_shares_btv = jnp.moveaxis(draft_shares_tbv[:ahead], 0, 1)

        given_bt = jnp.concatenate([state.last_b[:, None], drafted_bt], axis=1)
        logits_btv, cache = decode(given_bt, positions_tb.T, state.cache)
        shares_btv = probabilities(logits_btv)

        # A token is accepted with the ratio of its two probabilities, if all before it were.
        here = everyone[:, None], jnp.arange(ahead), drafted_bt
        ratios_bt = shares_btv[here] / draft_shares_btv[here]
        chances_bt = jnp.full((rows, ahead), 0.5)
        if sampling.is_random:
            uniform = jax.vmap(lambda key: jax.random.uniform(key, (ahead,)))
            chances_bt = uniform(keys_of(1, state.rounds))
        accepted_bt = jnp.cumprod(chances_bt < ratios_bt, axis=1)
        accepted_b = accepted_bt.sum(axis=1)

        # The next token is drawn from what the draft's distribution lacks; after a fully accepted
        # draft, from the large model's distribution.
        none_b1v = jnp.zeros_like(draft_shares_btv[:, :1])
        taken_btv = jnp.concatenate([draft_shares_btv, none_b1v], axis=1)
        missing_bv = jnp.maximum(shares_btv - taken_btv, 0)[everyone, accepted_b]
        final_b = draw(keys_of(2, state.rounds), missing_bv)

        new_bt = jnp.where(jnp.arange(ahead + 1) < accepted_b[:, None], _padded(drafted_bt), 0)
        new_bt = new_bt.at[everyone, accepted_b].set(final_b)
        tokens_bt, ended_b, counts_b = state.tokens_bt, state.ended_b, state.counts_b
        for number in range(ahead + 1):
            open_b = ~ended_b & (number <= accepted_b) & (counts_b < steps)
            place_b = jnp.minimum(counts_b, steps - 1)
            token_b = jnp.where(open_b, new_bt[:, number], tokens_bt[everyone, place_b])
            tokens_bt = tokens_bt.at[everyone, place_b].set(token_b)
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
    state = jax.lax.while_loop(unfinished, a_round, start)
    return Speculated(state.tokens_bt, state.rounds)


def _padded(tokens_bt: Array) -> Array:
    return jnp.pad(tokens_bt, ((0, 0), (0, 1)))


def _ended_at(tokens_bt: Array, places_b: Array, ends: Ends) -> Array:
    return jax.vmap(lambda row, place: has_ended(row[None], place, ends)[0])(tokens_bt, places_b)
