"""Generation with the cache gives token for token what recomputing everything each time gives."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.heads import LanguageModel
from tests.model.examples import POSITIONS, Rows, pack, text_logits, text_params, tokens
from tests.tiny import tiny_config
from training.generation import make_answer, make_continuation

STEPS, PROMPT_COLUMNS, NEVER = 6, 6, -1
BOS, PAD = 1, 0
LENGTHS = (6, 2, 4)  # of the prompts, and of the sources
PROMPTS = pack(*([tokens(n, seed=n)] for n in LENGTHS), columns=PROMPT_COLUMNS)


def small(**changes):
    """A model with much to say: with random biases or a tied output it repeats one token."""
    return tiny_config(tie_output=False, embedding_scale=True, bias=False, **changes)


def greedy(config, starts, *source, prefix_lengths=None):
    """Rows (B, STEPS) from whole passes over ever longer rows, which begin with `starts`."""
    columns = max(map(len, starts)) + STEPS
    rows = [list(start) for start in starts]
    prefix = None
    if prefix_lengths is not None:
        prefix = (np.arange(columns) < np.array(prefix_lengths)[:, None]).astype(np.int32)
    for _ in range(STEPS):
        inputs = np.array([row + [PAD] * (columns - len(row)) for row in rows], np.int32)
        # What stands behind the last token cannot be seen from it.
        everywhere = np.broadcast_to(np.arange(columns, dtype=np.int32), inputs.shape)
        target = Rows(inputs, everywhere, np.ones_like(inputs), ())
        logits_btv = text_logits(config, target, *source, prefix=prefix)
        for row, logits_tv in zip(rows, logits_btv, strict=True):
            row.append(int(logits_tv[len(row) - 1].argmax()))
    return [row[-STEPS:] for row in rows]


def cut(rows, eos_id):
    """Each row up to its first end of sequence, then padding."""
    return [
        row[: row.index(eos_id) + 1] + [PAD] * (STEPS - row.index(eos_id) - 1)
        if eos_id in row
        else row
        for row in rows
    ]


def early_token(rows):
    """A token to take for the end: some row has it before its last place, and some row has none."""
    for token in itertools.chain(*rows):
        holders = [row for row in rows if token in row]
        if len(holders) < len(rows) and any(row.index(token) < STEPS - 1 for row in holders):
            return token
    raise AssertionError("these parameters say the same in every row")


@functools.cache
def continued(config, eos_id=NEVER, see_whole_prompt=False):
    run = make_continuation(
        LanguageModel(config), config, steps=STEPS, eos_id=eos_id, pad_id=PAD,
        see_whole_prompt=see_whole_prompt,
    )  # fmt: skip
    prompts = (jnp.asarray(PROMPTS.inputs), jnp.asarray(LENGTHS, jnp.int32))
    return run(text_params(config), *prompts, jax.random.key(0)).tolist()


def answered(config, eos_id=NEVER):
    run = make_answer(
        LanguageModel(config), config, steps=STEPS, bos_id=BOS, eos_id=eos_id, pad_id=PAD
    )
    source = (jnp.asarray(PROMPTS.inputs), jnp.asarray(PROMPTS.segments))
    return run(text_params(config), *source).tolist()


def prompts():
    return [row[:length].tolist() for row, length in zip(PROMPTS.inputs, LENGTHS, strict=True)]


def assert_not_trivial(rows):
    assert len({tuple(row) for row in rows}) > 1, "rows differ"
    assert any(len(set(row)) > 1 for row in rows), "and so do tokens"


@pytest.mark.parametrize("position", POSITIONS)
def test_continuations_of_prompts_of_mixed_lengths(position):
    config = small(family="decoder", position=position)
    expected = greedy(config, prompts())
    assert_not_trivial(expected)
    assert continued(config) == expected


def test_continuations_of_a_prompt_that_is_read_both_ways():
    config = small(family="decoder", position="rope")
    expected = greedy(config, prompts(), prefix_lengths=LENGTHS)
    assert expected != greedy(config, prompts())
    assert continued(config, see_whole_prompt=True) == expected


@pytest.mark.parametrize("position", ["sinusoidal", "rope", "t5_bias"])
def test_answers_to_sources_of_mixed_lengths(position):
    config = small(family="encoder_decoder", position=position)
    expected = greedy(config, [[BOS]] * len(LENGTHS), PROMPTS)
    assert_not_trivial(expected)
    assert answered(config) == expected


def test_continuations_end():
    config = small(family="decoder", position="rope")
    unending = continued(config)
    end = early_token(unending)
    assert continued(config, eos_id=end) == cut(unending, end)


def test_answers_end():
    config = small(family="encoder_decoder", position="rope")
    unending = answered(config)
    end = early_token(unending)
    assert answered(config, eos_id=end) == cut(unending, end)


def test_a_temperature_makes_continuations_depend_on_the_key():
    config = small(family="decoder", position="rope")
    run = make_continuation(
        LanguageModel(config), config, steps=STEPS, eos_id=NEVER, pad_id=PAD,
        see_whole_prompt=False, temperature=5.0,
    )  # fmt: skip
    given = (text_params(config), jnp.asarray(PROMPTS.inputs), jnp.asarray(LENGTHS, jnp.int32))
    first, again, other = (run(*given, jax.random.key(k)).tolist() for k in (0, 0, 1))
    assert first == again
    assert first != other
