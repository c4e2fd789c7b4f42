"""Decoding with a toy model whose every token is known in advance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inference.decoding import (
    GREEDY,
    Ends,
    Sampling,
    adjust_logits,
    advance,
    begin,
    repeat_rows,
    sample_token,
)
from tests.inference.plain_decoding import assert_drawn_from, shares
from tests.tiny import quick_jit

V, EOS, PAD = 9, 7, 0
ENDS, NO_END = Ends(EOS, PAD), Ends(-1, PAD)
MODEL_SAYS = Sampling(temperature=1.0)


def one_hot(tokens):
    return 5 * jax.nn.one_hot(tokens, V)


def count_up(token_b1, position_b1, cache):
    """Predicts the last token plus one."""
    return one_hot((token_b1 + 1) % V), cache


def repeat(token_b1, position_b1, cache):
    return one_hot(token_b1), cache


def tell_position(token_b1, position_b1, cache):
    """Predicts its own position."""
    return one_hot(position_b1 % V), cache


def recall(token_b1, position_b1, state_b):
    """Random logits that depend on all tokens so far and on their positions."""
    state_b = (state_b * 5 + token_b1[:, 0] + position_b1[:, 0] + 1) % len(TABLE)
    return jnp.asarray(TABLE)[state_b][:, None], state_b


TABLE = np.random.default_rng(0).normal(0, 2, (101, V)).astype(np.float32)


@functools.cache
def compiled(decode, **given):
    return quick_jit(functools.partial(advance, decode, **given))


def run(decode, logits_bv, positions_b=None, cache=None, keys_b=None, *, steps, pieces=(), **given):
    """Tokens (B, steps) as lists; first up to each of the steps in `pieces`, then to the end."""
    occurred_bv, given = given.pop("occurred_bv", None), dict(sampling=GREEDY, ends=ENDS) | given
    if positions_b is None:
        positions_b = jnp.zeros(len(logits_bv), jnp.int32)
    progress = begin(
        logits_bv, cache, steps=steps, pad_id=given["ends"].pad_id, occurred_bv=occurred_bv
    )
    for until in (*pieces, steps):
        progress = compiled(decode, **given)(
            progress, jnp.asarray(positions_b), keys_b, until=until
        )
    return progress.tokens_bt.tolist()


def said(decode, first, positions_b=None, **options):
    """The generated tokens, if the prompt predicts the `first` tokens with certainty."""
    return run(decode, one_hot(jnp.asarray(first)), positions_b, **options)


# From token to token.


def test_each_token_follows_from_the_one_before():
    assert said(count_up, [1, 3], steps=4) == [[1, 2, 3, 4], [3, 4, 5, 6]]


def test_a_row_ends_with_eos_and_pads_follow():
    assert said(count_up, [4, 7, 1], steps=6) == [
        [4, 5, 6, 7, 0, 0],
        [7, 0, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6],
    ]


def test_padding_and_end_may_be_any_id():
    assert said(count_up, [2, 5], steps=4, ends=Ends(3, 8)) == [[2, 3, 8, 8], [5, 6, 7, 8]]


def test_each_row_counts_its_own_positions():
    # The first token comes from the prompt; each next one is the position of the last one.
    tokens = said(tell_position, [1, 1], [2, 4], steps=4, ends=NO_END)
    assert tokens == [[1, 2, 3, 4], [1, 4, 5, 6]]


def test_the_cache_is_passed_from_call_to_call():
    def say_how_often(token_b1, position_b1, calls):
        return one_hot(jnp.full_like(token_b1, calls)), calls + 1

    assert said(say_how_often, [3], cache=jnp.int32(1), steps=5) == [[3, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("first", "stops", "expected"),
    [
        ([1, 3, 5], [(3, 4)], [[1, 2, 3, 4, 0, 0], [3, 4, 0, 0, 0, 0], [5, 6, 7, 0, 0, 0]]),
        # Several of different lengths: the one that is complete first ends the row.
        ([1, 3], [(5,), (2, 3, 4)], [[1, 2, 3, 4, 0, 0], [3, 4, 5, 0, 0, 0]]),
        # The padding's id may be part of one.
        ([8], [(8, 0)], [[8, 0, 0, 0, 0, 0]]),
        ([8], [(8, 0, 1)], [[8, 0, 1, 0, 0, 0]]),
        # None of these is ever complete: a gap, the wrong order, more tokens than there are steps.
        ([1], [(2, 4), (3, 2), (1, 2, 3, 4, 5, 6, 7)], [[1, 2, 3, 4, 5, 6]]),
    ],
)  # fmt: skip
def test_stop_sequences_end_a_row(first, stops, expected):
    assert said(count_up, first, steps=6, ends=Ends(EOS, PAD, tuple(stops))) == expected


def test_stop_sequences_match_generated_tokens_only():
    # At the first token, nothing is before it that could count as part of the stop.
    assert said(repeat, [3, 4], steps=4, ends=Ends(EOS, 1, ((3, 3), (4, 4, 4)))) == [
        [3, 3, 1, 1],
        [4, 4, 4, 1],
    ]


@pytest.mark.parametrize(
    ("first", "stops", "calls"),
    [([6, 7], [], 2), ([6, 1], [], 7), ([6, 1], [(2, 3)], 3), ([8, 8], [], 8)],
)
def test_decoding_stops_when_every_row_has_ended(first, stops, calls):
    count = 0

    def decode(*arguments):
        nonlocal count
        count += 1
        return count_up(*arguments)

    progress = begin(one_hot(jnp.asarray(first)), None, steps=8, pad_id=PAD)
    with jax.disable_jit():  # so that a loop calls the function as often as it turns
        advance(
            decode, progress, jnp.zeros(2, jnp.int32), None,
            until=8, sampling=GREEDY, ends=Ends(EOS, PAD, tuple(stops)),
        )  # fmt: skip
    assert count == calls


def random_run(rows=slice(None), **options):
    """Five rows that differ in everything, of which those in `rows` are run."""
    state_b = jnp.arange(5)
    each = (
        jnp.asarray(TABLE)[state_b], 3 * state_b, state_b, jax.random.split(jax.random.key(6), 5),
    )  # fmt: skip
    given = dict(
        steps=8,
        sampling=Sampling(temperature=1.5, top_k=6, repetition_penalty=1.2),
        occurred_bv=jax.nn.one_hot(state_b, V, dtype=bool)[rows],
    )
    return run(recall, *(array[rows] for array in each), **given | options)


@pytest.mark.parametrize("ends", [ENDS, NO_END], ids=["ends", "no_end"])
def test_a_row_does_not_depend_on_other_rows(ends):
    together = random_run(ends=ends)
    assert len({tuple(row) for row in together}) == 5
    if ends is ENDS:
        assert len({row.index(EOS) if EOS in row else None for row in together}) > 2
    for number in range(5):
        assert random_run(slice(number, number + 1), ends=ends) == [together[number]]
    assert random_run(slice(None, None, -1), ends=ends) == together[::-1]


@pytest.mark.parametrize("pieces", [(1,), (3, 5), (2, 2, 7), (8,)])
def test_decoding_in_pieces_equals_decoding_in_one_go(pieces):
    assert random_run(pieces=pieces) == random_run()


# From logits to a token.

SAMPLINGS = [
    dict(temperature=0.3),
    dict(temperature=2.0),
    dict(top_k=1),
    dict(top_k=4),
    dict(top_k=V),
    dict(top_k=100),
    dict(top_p=1e-9),
    dict(top_p=0.5),
    dict(top_p=0.95),
    dict(top_p=1 - 1e-6),
    dict(min_p=0.05),
    dict(min_p=0.5),
    dict(min_p=1.0),
    dict(repetition_penalty=1.4),
    dict(repetition_penalty=0.7),
    dict(top_k=5, top_p=0.8),
    dict(top_p=0.9, min_p=0.2),
    dict(top_k=6, min_p=0.1),
    dict(temperature=1.7, top_k=6, top_p=0.9, min_p=0.08, repetition_penalty=1.3),
    dict(temperature=0.6, top_k=6, top_p=0.9, min_p=0.01, repetition_penalty=1.3),
]


limited = quick_jit(adjust_logits, static_argnums=1)


@pytest.mark.parametrize("changes", SAMPLINGS, ids=str)
def test_the_distribution_is_what_plain_python_makes_of_it(changes):
    sampling = Sampling(**{"temperature": 1.0} | changes)
    logits_bv = TABLE[:40]
    occurred_bv = np.random.default_rng(1).random(logits_bv.shape) < 0.3
    expected = [
        shares(logits_v, sampling, np.flatnonzero(occurred_v))
        for logits_v, occurred_v in zip(logits_bv, occurred_bv, strict=True)
    ]
    actual = jax.nn.softmax(limited(logits_bv, sampling, occurred_bv))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(actual) == 0, np.array(expected) == 0)


def allowed(logits, **changes):
    """The tokens that remain after filtering."""
    sampling = Sampling(temperature=1.0, **changes)
    return np.flatnonzero(np.isfinite(limited(logits[None], sampling)[0])).tolist()


def test_filters_keep_tokens_tied_with_the_last_one():
    logits = np.log(np.array([1, 4, 2, 4, 2, 3], np.float32) / 16)
    assert allowed(logits, top_k=1) == [1, 3]
    assert allowed(logits, top_k=4) == [1, 2, 3, 4, 5]
    assert allowed(logits, top_p=0.2) == [1, 3]
    assert allowed(logits, top_p=0.7) == [1, 2, 3, 4, 5]
    assert allowed(logits, min_p=0.7) == [1, 3, 5]


def test_each_filter_applies_to_what_the_last_one_left():
    logits = np.log(np.array([40, 30, 20, 10], np.float32) / 100)
    assert allowed(logits, top_p=0.75) == [0, 1, 2]
    # Of the two that are left, the first has 40 / 70: not yet enough for 0.6, but for 0.55.
    assert allowed(logits, top_k=2, top_p=0.6) == [0, 1]
    assert allowed(logits, top_k=2, top_p=0.55) == [0]


def test_filters_always_keep_the_likeliest_token():
    logits = np.array([0.0, 20.0, -30.0, 19.0], np.float32)
    assert allowed(logits, top_k=1, top_p=1e-30, min_p=1.0) == [1]


def test_the_repetition_penalty_lowers_positive_and_negative_logits():
    logits_bv = jnp.asarray([[2.0, -2.0, 0.0, 3.0, -1.0]])
    occurred_bv = jnp.asarray([[True, True, True, False, False]])
    penalised = limited(logits_bv, Sampling(repetition_penalty=2.0), occurred_bv)
    assert penalised.tolist() == [[1.0, -4.0, 0.0, 3.0, -1.0]]


def test_the_repetition_penalty_counts_prompt_and_generated_tokens():
    logits_v = jnp.asarray([0.5, 8.0, 7.0, 6.0, 5.0, 4.0, 0.3, 0.2, 0.1])

    def always_the_same(token_b1, position_b1, cache):
        return jnp.broadcast_to(logits_v, (len(token_b1), 1, V)), cache

    prompts_bv = jax.nn.one_hot(jnp.asarray([[1, 1], [2, 4]]), V, dtype=bool).any(axis=1)
    tokens = run(
        always_the_same, jnp.broadcast_to(logits_v, (2, V)), steps=5, ends=NO_END,
        sampling=Sampling(repetition_penalty=10.0), occurred_bv=prompts_bv,
    )  # fmt: skip
    # Once all five likely tokens occurred, the likeliest comes again, at 8.0 / 10.
    assert tokens == [[2, 3, 4, 5, 1], [1, 3, 5, 1, 1]]


def test_zero_temperature_picks_the_likeliest_token():
    logits_bv = jnp.asarray([[0.0, 3.0, 2.9], [-1.0, -3.0, -2.0]])
    assert sample_token(logits_bv, GREEDY, None).tolist() == [1, 0]


@pytest.mark.parametrize(
    "changes",
    [{}, dict(temperature=0.5), dict(temperature=2.0), dict(top_k=3), dict(top_p=0.8, min_p=0.1)],
    ids=str,
)
def test_tokens_are_drawn_from_the_distribution(changes):
    draws, logits_v = 20_000, np.array([2.0, 1.0, 0.0, -1.0, 0.5], np.float32)
    sampling = Sampling(**{"temperature": 1.0} | changes)
    keys_b = jax.random.split(jax.random.key(0), draws)
    picked = sample_token(jnp.broadcast_to(logits_v, (draws, 5)), sampling, keys_b)
    assert_drawn_from(shares(logits_v, sampling), np.asarray(picked))


def test_every_step_and_every_row_draws_anew():
    def indifferent(token_b1, position_b1, cache):
        return jnp.zeros((*token_b1.shape, V)), cache

    def draw(seed):
        keys_b = jax.random.split(jax.random.key(seed), 300)
        options = dict(steps=3, sampling=MODEL_SAYS, ends=NO_END)
        return np.array(run(indifferent, jnp.zeros((300, V)), keys_b=keys_b, **options))

    tokens_bt = draw(1)
    # Two columns agree by chance in a ninth of the rows.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert 10 < (tokens_bt[:, a] == tokens_bt[:, b]).sum() < 60
    assert len(np.unique(tokens_bt, axis=0)) > 200
    np.testing.assert_array_equal(tokens_bt, draw(1))
    assert (tokens_bt != draw(2)).mean() > 0.8


def test_half_precision_logits_are_filtered_in_single():
    logits_bv = jnp.asarray([[1.0, 0.99, 0.5]], jnp.bfloat16)
    assert limited(logits_bv, Sampling(temperature=0.7, top_p=0.9)).dtype == jnp.float32


def test_repeated_rows_are_adjacent():
    tree = dict(rows=jnp.asarray([[1, 2], [3, 4]]), number=jnp.int32(5), nothing=None)
    assert repeat_rows(1, tree) is tree
    copies = repeat_rows(3, tree)
    assert copies["rows"].tolist() == [[1, 2]] * 3 + [[3, 4]] * 3
    assert copies["number"] == 5 and copies["nothing"] is None


def test_the_first_of_equally_likely_tokens_is_picked():
    inf, nan = np.inf, np.nan
    logits_bv = np.float32(
        [[1, 3, 2, 3], [-inf, -inf, -inf, -inf], [0.0, -0.0, -1, 0], [2, 2, inf, inf]]
    )
    found_b = sample_token(jnp.asarray(logits_bv), GREEDY, None)
    assert found_b.dtype == jnp.int32
    assert found_b.tolist() == [1, 0, 0, 2]
    drawn_bv = np.random.default_rng(0).integers(0, 30, (50, 101)).astype(np.float32)
    assert (
        sample_token(jnp.asarray(drawn_bv), GREEDY, None).tolist()
        == drawn_bv.argmax(axis=1).tolist()
    )
    assert sample_token(jnp.asarray([[1, nan, 0, 2.0]]), GREEDY, None).tolist() == [3]
