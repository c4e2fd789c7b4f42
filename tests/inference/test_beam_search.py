"""Beam search on a toy model, against all sequences and against plain Python."""

import functools
import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inference.beam_search import NEVER, beam_search
from inference.decoding import GREEDY, Ends, advance, begin
from tests.inference import plain_decoding as plain
from tests.tiny import quick_jit

STATES, V, EOS, PAD = 61, 4, 3, 0
ROWS, FIRST_POSITION, PROMPT_SLOTS = 5, 2, 3
ALPHAS = [0.0, 0.6, 1.0]
TABLE = np.random.default_rng(0).normal(0, 1.5, (STATES, V)).astype(np.float32)


def state_after(state, token, position):
    return (state * 7 + token * 13 + position * 29 + 1) % STATES


@flax.struct.dataclass
class Memory:
    """The generated tokens in slots, as in a model's cache. The first slot is the row's prompt."""

    states_b: jax.Array
    tokens_bs: jax.Array
    positions_bs: jax.Array
    index: jax.Array


def empty_memory(states_b, slots):
    nothing_bs = jnp.zeros((len(states_b), PROMPT_SLOTS + slots), jnp.int32)
    return Memory(states_b, nothing_bs, nothing_bs, jnp.asarray(PROMPT_SLOTS))


def decoder(table):
    """The state of a query is computed from its visible tokens, in order."""

    def decode(tokens_bt, positions_bt, memory, visible_bts=None):
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
        tokens_bs = put(memory.tokens_bs, tokens_bt, memory.index)
        positions_bs = put(memory.positions_bs, positions_bt, memory.index)
        memory = Memory(memory.states_b, tokens_bs, positions_bs, memory.index + tokens_bt.shape[1])
        if visible_bts is None:  # one after another, without branches
            visible_bts = (jnp.arange(tokens_bs.shape[1]) < memory.index)[None, None]
        states_bt = jnp.broadcast_to(memory.states_b[:, None], tokens_bt.shape)
        for slot in range(PROMPT_SLOTS, tokens_bs.shape[1]):
            after_bt = state_after(states_bt, tokens_bs[:, None, slot], positions_bs[:, None, slot])
            states_bt = jnp.where(visible_bts[..., slot], after_bt, states_bt)
        return jnp.asarray(table)[states_bt], memory

    return decode


def next_logits(table, row):
    """The same model for one row, in plain Python."""

    def logits(sequences):
        states = []
        for sequence in sequences:
            state = row
            for position, token in enumerate(sequence, start=FIRST_POSITION + row):
                state = state_after(state, token, position)
            states.append(state)
        return table[states]

    return logits


def given(table, rows, slots):
    """After row b's prompt, the model is in state b, and every row has its own next position."""
    rows_b = jnp.asarray(rows)
    return jnp.asarray(table)[rows_b], FIRST_POSITION + rows_b, empty_memory(rows_b, slots)


@functools.cache
def compiled(**sizes):
    constants = dict(pad_id=PAD, prompt_slots=PROMPT_SLOTS)
    return quick_jit(functools.partial(beam_search, decoder(TABLE), **constants, **sizes))


def search(*, rows=tuple(range(ROWS)), alpha, eos_id=EOS, beams, steps, **more):
    start = given(TABLE, rows, slots=beams * steps)
    found = compiled(eos_id=eos_id, beams=beams, steps=steps, **more)(*start, alpha=alpha)
    return jax.tree.map(np.asarray, found)


def assert_found(tokens_kn, scores_k, expected):
    """`expected` are scores and sequences, the best first."""
    steps = tokens_kn.shape[1]
    assert tokens_kn.tolist() == [plain.filled_up(tokens, steps, PAD) for _, tokens in expected]
    np.testing.assert_allclose(scores_k, [score for score, _ in expected], rtol=0, atol=1e-5)


def all_sequences(row, steps, alpha, ends=(EOS,)):
    """Every sequence that ends or has the maximum length, the best first."""
    alive = [token for token in range(V) if token not in ends]
    starts = [start for n in range(steps) for start in itertools.product(alive, repeat=n)]
    ended = [[*start, end] for start in starts for end in ends]
    unfinished = [list(tokens) for tokens in itertools.product(alive, repeat=steps)]
    logits = next_logits(TABLE, row)
    scored = []
    for tokens in ended + unfinished:
        rows = plain.log_softmax(logits([tokens[:n] for n in range(len(tokens))]))
        total = rows[range(len(tokens)), tokens].sum()
        scored.append((total / plain.length_penalty(len(tokens), alpha), tokens))
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_enough_beams_find_all_sequences_in_order(alpha):
    steps, sequences = 3, 1 + 3 + 9 + 27
    found = search(beams=sequences, steps=steps, alpha=alpha)
    for row in range(ROWS):
        expected = all_sequences(row, steps, alpha)
        assert len(expected) == sequences
        assert_found(found.tokens_bnt[row], found.scores_bn[row], expected)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("more", [(1,), (1, 2)])
def test_any_eos_id_ends_a_sequence(more, alpha):
    """Few beams need more candidates then: up to three of a beam's four continuations are ends."""
    ends, steps = (EOS, *more), 4
    everything = [all_sequences(row, steps, alpha, ends) for row in range(ROWS)]
    found = search(beams=len(everything[0]), steps=steps, alpha=alpha, more_eos_ids=more)
    for row, expected in enumerate(everything):
        assert_found(found.tokens_bnt[row], found.scores_bn[row], expected)
    for beams in (1, 2, 3):
        found = search(beams=beams, steps=steps, alpha=alpha, more_eos_ids=more)
        for row in range(ROWS):
            expected = plain.beam_search(
                next_logits(TABLE, row),
                beams=beams, steps=steps, alpha=alpha, eos_id=EOS, more_eos_ids=more,
            )  # fmt: skip
            expected += [(NEVER, [])] * (beams - len(expected))
            assert_found(found.tokens_bnt[row], found.scores_bn[row], expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_more_beams_than_sequences_leave_the_rest_empty(alpha):
    sequences = 1 + 3 + 9
    found = search(beams=20, steps=2, alpha=alpha)
    for row in range(ROWS):
        there = found.tokens_bnt[row, :sequences], found.scores_bn[row, :sequences]
        assert_found(*there, all_sequences(row, 2, alpha))
    assert (found.scores_bn[:, sequences:] == NEVER).all()
    assert (found.tokens_bnt[:, sequences:] == PAD).all()


@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_few_beams_find_what_plain_python_finds(alpha, beams):
    steps = 8
    found = search(beams=beams, steps=steps, alpha=alpha)
    for row in range(ROWS):
        expected = plain.beam_search(
            next_logits(TABLE, row), beams=beams, steps=steps, alpha=alpha, eos_id=EOS
        )
        assert_found(found.tokens_bnt[row], found.scores_bn[row], expected)


def test_the_penalty_lets_longer_sequences_win():
    def lengths(alpha):
        found = search(beams=3, steps=8, alpha=alpha)
        return [(np.append(row, EOS) == EOS).argmax() for row in found.tokens_bnt[:, 0]]

    short, long = lengths(0.0), lengths(3.0)
    assert all(a <= b for a, b in zip(short, long, strict=True)) and short != long


def test_one_beam_without_a_penalty_is_greedy():
    found = search(beams=1, steps=10, alpha=0.0)
    logits_bv, positions_b, memory = given(TABLE, range(ROWS), slots=10)
    progress = begin(logits_bv, memory, steps=10, pad_id=PAD)
    greedy = advance(
        decoder(TABLE), progress, positions_b, None,
        until=10, sampling=GREEDY, ends=Ends(EOS, PAD),
    )  # fmt: skip
    assert found.tokens_bnt[:, 0].tolist() == greedy.tokens_bt.tolist()
    for row in range(ROWS):
        tokens = plain.greedy(next_logits(TABLE, row), steps=10, eos_id=EOS)
        assert found.tokens_bnt[row, 0].tolist() == plain.filled_up(tokens, 10, PAD)


def test_without_eos_beams_are_scored_at_the_last_step():
    found = search(beams=3, steps=5, alpha=0.6, eos_id=-1)
    for row in range(ROWS):
        expected = plain.beam_search(
            next_logits(TABLE, row), beams=3, steps=5, alpha=0.6, eos_id=-1
        )
        assert all(len(tokens) == 5 for _, tokens in expected)
        assert_found(found.tokens_bnt[row], found.scores_bn[row], expected)


def test_a_row_does_not_depend_on_other_rows():
    sizes = dict(beams=3, steps=8, alpha=0.6)
    together = search(**sizes)
    for row in range(ROWS):
        alone = search(rows=(row,), **sizes)
        np.testing.assert_array_equal(alone.tokens_bnt[0], together.tokens_bnt[row])
        np.testing.assert_allclose(alone.scores_bn[0], together.scores_bn[row], rtol=1e-6)
    backwards = search(rows=tuple(range(ROWS))[::-1], **sizes)
    np.testing.assert_array_equal(backwards.tokens_bnt[::-1], together.tokens_bnt)


@pytest.mark.parametrize(
    ("end", "beams", "alpha", "calls"),
    [
        # The first beam ends, and every live beam is already less likely.
        (0.9, 1, 0.0, 1),
        # The second step brings the second sequence; what is alive then is below it, at 0.0025.
        (0.9, 2, 0.0, 2),
        # Twelve tokens divide by 17 / 6: ln(0.05), so divided, is still below ln(0.9) ...
        (0.9, 1, 1.0, 1),
        # ... but ln(0.25) is above ln(0.5), so that one more token is tried; ln(0.0625) is not.
        (0.5, 1, 1.0, 2),
        # An end that is never among the best keeps the search going.
        (0.01, 2, 0.0, 12),
    ],
)
def test_the_search_stops_when_no_live_beam_can_win(end, beams, alpha, calls):
    steps, count = 12, 0
    others = (1 - end) * np.array([0.5, 0.3, 0.2])
    table = np.tile(np.log([*others, end]).astype(np.float32), (STATES, 1))

    def decode(*arguments, **options):
        nonlocal count
        count += 1
        return decoder(table)(*arguments, **options)

    options = dict(beams=beams, steps=steps, alpha=alpha, eos_id=EOS)
    with jax.disable_jit():  # so that a loop calls the function as often as it turns
        start = given(table, [0], slots=beams * steps)
        found = beam_search(decode, *start, pad_id=PAD, prompt_slots=PROMPT_SLOTS, **options)
    assert count == calls
    # Plain Python goes on to the last step, and finds nothing better.
    expected = plain.beam_search(next_logits(table, 0), **options)
    np.testing.assert_allclose(found.scores_bn[0], [score for score, _ in expected], atol=1e-5)
    if alpha or end > 0.5:  # where no two are equally likely
        assert_found(np.asarray(found.tokens_bnt[0]), found.scores_bn[0], expected)
