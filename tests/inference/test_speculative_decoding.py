"""Speculative decoding with tables as models: the tokens are the target's, for any draft."""

import functools
import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inference.decoding import GREEDY, Ends, Sampling
from inference.speculative_decoding import speculate
from tests.inference.plain_decoding import assert_drawn_from, filled_up, greedy, shares
from tests.tiny import quick_jit

V, PAD, NO_END = 6, 0, Ends(-1, 0)


def table(seed, spread=2.0):
    """Logits by position (even or odd), the last token but one, and the last."""
    return np.random.default_rng(seed).normal(0, spread, (2, V, V, V)).astype(np.float32)


TARGET = table(0)
DRAFTS = dict(
    perfect=TARGET,
    good=TARGET + 0.5 * table(1),
    random=table(2),
    wrong=-TARGET,  # what the target likes least
)
PROMPTS = [[4], [3, 1, 5, 2], [1, 2, 2], [5, 5], [2, 4, 1, 1]]


@flax.struct.dataclass
class Tape:
    """Tokens in slots, as a model's cache holds keys and values: later ones may be wrong."""

    tokens_bs: jax.Array
    index: jax.Array


def decoder(logits):
    def decode(tokens_bt, positions_bt, tape):
        rows, length = tokens_bt.shape
        first_b1 = jnp.broadcast_to(tape.index, (rows,))[:, None]
        slots_bt, rows_b1 = first_b1 + jnp.arange(length), jnp.arange(rows)[:, None]
        tokens_bs = tape.tokens_bs.at[rows_b1, slots_bt].set(tokens_bt)
        before_bt = tokens_bs[rows_b1, slots_bt - 1]
        logits_btv = jnp.asarray(logits)[positions_bt % 2, before_bt, tokens_bt]
        return logits_btv, Tape(tokens_bs, tape.index + length)

    return decode


def next_logits(logits, prompt):
    """The same model for one prompt, in plain Python."""

    def behind(tokens):
        before, last = [0, *prompt, *tokens][-2:]
        return logits[(len(prompt) + len(tokens) - 1) % 2, before, last]

    return lambda sequences: np.stack([behind(tokens) for tokens in sequences])


def given(prompts, room, copies):
    """Logits behind the prompts, where they go on, and a tape that holds them and has room."""
    slots = 1 + max(map(len, prompts))
    tokens_bs = np.zeros((len(prompts), slots + room), np.int32)
    for row, prompt in zip(tokens_bs, prompts, strict=True):
        row[slots - len(prompt) : slots] = prompt
    logits_bv = np.concatenate([next_logits(TARGET, prompt)([[]]) for prompt in prompts])
    lengths_b = np.array([len(prompt) for prompt in prompts])
    logits_bv, lengths_b, tokens_bs = (
        jnp.asarray(np.repeat(array, copies, axis=0)) for array in (logits_bv, lengths_b, tokens_bs)
    )
    return logits_bv, lengths_b, Tape(tokens_bs, jnp.int32(slots))


@functools.cache
def compiled(draft, **options):
    run = functools.partial(speculate, decoder(TARGET), decoder(DRAFTS[draft]), **options)
    return quick_jit(run)


def speculated(draft, prompts=PROMPTS, keys_b=None, *, ahead, steps, copies=1, **options):
    options = dict(sampling=GREEDY, ends=NO_END) | options
    logits_bv, lengths_b, tape = given(prompts, steps + ahead, copies)
    run = compiled(draft, ahead=ahead, steps=steps, **options)
    return run(logits_bv, lengths_b, tape, tape, keys_b)


def plain(prompts, steps, ends=NO_END):
    """The target's own tokens, up to the first end or stop sequence."""
    rows = []
    for prompt in prompts:
        tokens = greedy(next_logits(TARGET, prompt), steps=steps, eos_id=ends.eos_id)
        for length in range(1, len(tokens) + 1):
            if any(tuple(tokens[:length][-len(stop) :]) == stop for stop in ends.stops):
                tokens = tokens[:length]
        rows.append(filled_up(tokens, steps, ends.pad_id))
    return rows


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
@pytest.mark.parametrize("draft", ["good", "random", "wrong"])
def test_greedy_tokens_are_those_of_the_target(draft, ahead):
    expected = plain(PROMPTS, steps=11)
    assert len({tuple(row) for row in expected}) > 3
    assert speculated(draft, ahead=ahead, steps=11).tokens_bt.tolist() == expected


@pytest.mark.parametrize(
    ("ahead", "steps", "rounds"),
    [(1, 1, 0), (1, 8, 4), (1, 9, 4), (2, 3, 1), (2, 10, 3), (3, 9, 2), (4, 2, 1), (4, 12, 3)],
)
def test_a_perfect_draft_is_accepted_completely(ahead, steps, rounds):
    found = speculated("perfect", ahead=ahead, steps=steps)
    assert found.tokens_bt.tolist() == plain(PROMPTS, steps)
    # The prompt gives one token, and every call as many as were drafted, and one more.
    assert found.rounds == rounds == -(-(steps - 1) // (ahead + 1))


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
def test_drafting_continues_from_accepted_tokens_after_a_rejection(ahead):
    """Otherwise the tokens would still be right, but would need more calls."""

    def rounds(prompt):
        right = greedy(next_logits(TARGET, prompt), steps=11 + ahead)
        count, calls = 1, 0
        while count < 11:
            for token in right[count : count + ahead]:
                if next_logits(DRAFTS["good"], prompt)([right[:count]])[0].argmax() != token:
                    break
                count += 1
            count, calls = count + 1, calls + 1
        return calls

    expected = max(map(rounds, PROMPTS))
    assert -(-10 // (ahead + 1)) < expected < 10, "sometimes right and sometimes wrong"
    assert speculated("good", ahead=ahead, steps=11).rounds == expected


def test_a_draft_that_is_never_right_costs_a_call_for_each_token():
    assert speculated("wrong", ahead=3, steps=11).rounds == 11 - 1


@pytest.mark.parametrize("draft", ["perfect", "random"])
@pytest.mark.parametrize(
    ("ends", "lengths"),
    [(Ends(2, PAD), [5, 3, 9, 4, 6]), (Ends(4, 5, ((1, 0), (5, 3), (1, 1, 1))), [3, 6, 4, 1, 3])],
    ids=["eos", "stops"],
)
def test_rows_end_independently(draft, ends, lengths):
    unending = plain(PROMPTS, steps=11)
    expected = [
        filled_up(row[:length], 11, ends.pad_id)
        for row, length in zip(unending, lengths, strict=True)
    ]
    assert expected == plain(PROMPTS, steps=11, ends=ends)
    assert speculated(draft, ahead=3, steps=11, ends=ends).tokens_bt.tolist() == expected


def test_a_row_does_not_depend_on_other_rows():
    options = dict(ahead=2, steps=8, sampling=Sampling(temperature=1.0), ends=Ends(3, PAD))
    keys_b = jax.random.split(jax.random.key(0), len(PROMPTS))
    together = speculated("good", PROMPTS, keys_b, **options).tokens_bt
    assert len({tuple(row) for row in together.tolist()}) > 3
    for row, prompt in enumerate(PROMPTS):
        two = speculated("good", [prompt, PROMPTS[1]], keys_b[jnp.asarray([row, 0])], **options)
        assert two.tokens_bt[0].tolist() == together[row].tolist()


@pytest.mark.parametrize(
    ("draft", "ahead", "changes"),
    [
        ("good", 1, {}),
        ("random", 2, {}),
        ("wrong", 1, {}),
        ("good", 3, dict(temperature=0.7)),
        ("random", 1, dict(top_k=3)),
        ("good", 2, dict(temperature=1.5, top_k=4, top_p=0.8)),
    ],
    ids=str,
)
def test_drawn_tokens_have_the_targets_distribution(draft, ahead, changes):
    sampling, prompt, rows = Sampling(**{"temperature": 1.0} | changes), [3, 1], 20_000
    keys_b = jax.random.split(jax.random.key(ahead), rows)
    options = dict(ahead=ahead, steps=3, copies=rows, sampling=sampling)
    found = speculated(draft, [prompt], keys_b, **options)
    drawn = np.asarray(found.tokens_bt) @ [V**2, V, 1]
    assert_drawn_from(chances(TARGET, prompt, sampling), drawn)
    with pytest.raises(AssertionError, match="drawn"):
        assert_drawn_from(chances(DRAFTS[draft], prompt, sampling), drawn)


def chances(logits, prompt, sampling):
    """The exact probability of each three tokens behind the prompt, in order."""

    def share(tokens):
        return shares(next_logits(logits, prompt)([tokens])[0], sampling)

    return np.array(
        [
            share([])[first] * share([first])[second] * share_third
            for first, second in itertools.product(range(V), repeat=2)
            for share_third in share([first, second])
        ]
    )
