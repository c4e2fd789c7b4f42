"""Generation with a toy in place of the model, where every token can be told in advance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.decoding import generate, pick

V, EOS, PAD = 9, 7, 0


def one_hot(tokens):
    return 5 * jax.nn.one_hot(tokens, V)


def count_up(token_b1, position_b1, cache):
    """Says the token after the one it was given."""
    return one_hot((token_b1 + 1) % V), cache


def tell_position(token_b1, position_b1, cache):
    """Says where it stands."""
    return one_hot(position_b1 % V), cache


def generated(decode, first_b, positions_b=None, *, steps, **options):
    positions_b = jnp.zeros(len(first_b), jnp.int32) if positions_b is None else positions_b
    logits_bv = one_hot(jnp.asarray(first_b))
    options = dict(eos_id=EOS, pad_id=PAD) | options
    run = jax.jit(functools.partial(generate, decode, steps=steps, **options))
    return np.asarray(run(logits_bv, jnp.asarray(positions_b, jnp.int32), None)).tolist()


def test_each_token_follows_from_the_one_before():
    assert generated(count_up, [1, 3], steps=4) == [[1, 2, 3, 4], [3, 4, 5, 6]]


def test_a_row_ends_with_eos_and_pads_follow():
    assert generated(count_up, [4, 7, 1], steps=6) == [
        [4, 5, 6, 7, 0, 0],
        [7, 0, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6],
    ]


def test_padding_and_end_may_be_any_id():
    options = dict(eos_id=3, pad_id=8)
    assert generated(count_up, [2, 5], steps=4, **options) == [[2, 3, 8, 8], [5, 6, 7, 8]]


def test_each_row_counts_its_own_positions():
    # The first token comes from the prompt; the next ones say where their forerunner stood.
    tokens = generated(tell_position, [1, 1], [2, 4], steps=4, eos_id=-1)
    assert tokens == [[1, 2, 3, 4], [1, 4, 5, 6]]


def test_the_cache_goes_from_call_to_call():
    def say_how_often(token_b1, position_b1, calls):
        return one_hot(jnp.full_like(token_b1, calls)), calls + 1

    tokens = generate(
        say_how_often, one_hot(jnp.asarray([3])), jnp.zeros(1, jnp.int32), jnp.int32(1),
        steps=5, eos_id=EOS, pad_id=PAD,
    )  # fmt: skip
    assert tokens.tolist() == [[3, 1, 2, 3, 4]]


@pytest.mark.parametrize(("first_b", "calls"), [([6, 7], 2), ([6, 1], 8)])
def test_it_stops_when_every_row_has_ended(first_b, calls):
    count = 0

    def decode(*arguments):
        nonlocal count
        count += 1
        return count_up(*arguments)

    with jax.disable_jit():  # so that a loop calls the function as often as it turns
        generate(
            decode, one_hot(jnp.asarray(first_b)), jnp.zeros(2, jnp.int32), None,
            steps=8, eos_id=EOS, pad_id=PAD,
        )  # fmt: skip
    # 1 2 3 4 5 6 7: the second case reaches its end after seven turns
    assert count == min(calls, 7)


def test_without_temperature_the_likeliest_is_picked():
    logits_bv = jnp.asarray([[0.0, 3.0, 2.9], [-1.0, -3.0, -2.0]])
    assert pick(logits_bv, 0.0, None).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_the_softmax_says(temperature):
    draws, logits = 20_000, np.array([2.0, 1.0, 0.0, -1.0, 0.5], np.float32)
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum() * draws
    logits_bv = jnp.broadcast_to(logits, (draws, len(logits)))
    counts = np.bincount(pick(logits_bv, temperature, jax.random.key(0)), minlength=len(logits))
    # Chi-squared with 4 degrees of freedom: above 18.5 once in a thousand, if all is well.
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


def test_every_step_and_every_row_draws_anew():
    def indifferent(token_b1, position_b1, cache):
        return jnp.zeros((*token_b1.shape, V)), cache

    @jax.jit
    def draw(key):
        return generate(
            indifferent, jnp.zeros((300, V)), jnp.zeros(300, jnp.int32), None,
            steps=3, eos_id=-1, pad_id=PAD, temperature=1.0, key=key,
        )  # fmt: skip

    tokens_bn = np.asarray(draw(jax.random.key(1)))
    # Two columns agree by chance in a ninth of the rows.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert 10 < (tokens_bn[:, a] == tokens_bn[:, b]).sum() < 60
    assert len(np.unique(tokens_bn, axis=0)) > 200
    np.testing.assert_array_equal(tokens_bn, draw(jax.random.key(1)))
    assert (tokens_bn != draw(jax.random.key(2))).mean() > 0.8
