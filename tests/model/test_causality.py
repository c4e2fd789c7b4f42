"""Nothing flows where the mask forbids it, and everything flows where it allows it."""

import jax
import numpy as np
import pytest

from model.mixers import MIXERS
from model.stack import Stack
from tests.model.examples import POSITIONS, pack, text_logits, tokens, unpadded
from tests.tiny import quick_jit, random_params, tiny_config

every_position = pytest.mark.parametrize("position", POSITIONS)
ROWS, COLUMNS = 3, 12

# Rows: two packed examples and padding; a prefix of two; one example.
POSITIONS_BT = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]], np.int32)
SEGMENTS_BT = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], np.int32)
PREFIX_BT = np.array([[0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], np.int32)

# Who has an influence on whom, rows being outputs: as the mask, and each position on itself,
# padding included, because of the residual.
CAUSAL = [
    [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ],
    [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ],
    np.tril(np.ones((6, 6), int)).tolist(),
]
TWO_SIDED = [
    [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ],
    np.ones((6, 6), int).tolist(),
    np.ones((6, 6), int).tolist(),
]
# The source of the first row is packed alike but in lengths of its own, with padding in front.
SOURCE_SEGMENTS_BS = np.array([[0, 1, 2, 2], [1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
CROSS = [
    [[0, 1, 0, 0]] * 3 + [[0, 0, 1, 1]] * 2 + [[0, 0, 0, 0]],
    [[1, 1, 1, 0]] * 6,
    [[1, 1, 1, 1]] * 6,
]


def influence(function, x: np.ndarray) -> list:
    """Where a gradient is other than exactly zero, (B, outputs, inputs), as zeros and ones."""

    def weighed_outputs(x):
        y_btd = function(x)
        weights = np.random.default_rng(9).normal(size=y_btd.shape).astype(np.float32)
        return (y_btd * weights).sum(axis=(0, 2))  # rows of a batch are apart, so they may add up

    gradient_tbsd = quick_jit(jax.jacrev(weighed_outputs))(x)
    return (gradient_tbsd != 0).any(axis=-1).swapaxes(0, 1).astype(int).tolist()


def random_array(*shape):
    return np.random.default_rng(4).normal(size=shape).astype(np.float32)


def hidden_states(config, causal):
    """A stack as a function of embedded tokens, on the three rows above."""
    stack = Stack(config, layers=2, causal=causal)
    params = random_params(stack, random_array(3, 6, config.width))
    prefix = PREFIX_BT if causal else None
    return lambda x_btd: stack.apply(
        {"params": params}, x_btd, POSITIONS_BT, SEGMENTS_BT, prefix_bt=prefix
    )[0]


@every_position
def test_gradients_follow_the_causal_mask(position):
    config = tiny_config(position=position)
    assert influence(hidden_states(config, True), random_array(3, 6, config.width)) == CAUSAL


def test_gradients_follow_the_two_sided_mask():
    config = tiny_config(position="t5_bias")
    assert influence(hidden_states(config, False), random_array(3, 6, config.width)) == TWO_SIDED


def test_gradients_from_the_source_follow_segments():
    config = tiny_config(position="rope")
    stack = Stack(config, layers=2, causal=True, cross=True)
    x, source = random_array(3, 6, config.width), random_array(3, 4, config.width)
    sources = dict(source_bsd=source, source_segments_bs=SOURCE_SEGMENTS_BS)
    params = random_params(stack, x, **sources)

    def hidden(x, source):
        return stack.apply(
            {"params": params}, x, POSITIONS_BT, SEGMENTS_BT, prefix_bt=PREFIX_BT,
            source_bsd=source, source_segments_bs=SOURCE_SEGMENTS_BS,
        )[0]  # fmt: skip

    assert influence(lambda source: hidden(x, source), source) == CROSS
    assert influence(lambda x: hidden(x, source), x) == CAUSAL


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_through_a_mixer_follow_the_mask_of_attention(mixer, causal):
    # The window of a convolution is as wide as a row.
    options = (("taps", 11.0),) if mixer == "conv" else ()
    config = tiny_config(family="decoder", position="none", mixer=mixer, mixer_options=options)
    stack = Stack(config, layers=2, causal=causal)
    x_btd = random_array(3, 6, config.width)
    params = random_params(stack, x_btd)
    has_prefix = causal and "prefix" not in MIXERS[mixer].refused
    prefix_bt = PREFIX_BT if has_prefix else None
    found = influence(
        lambda x_btd: stack.apply(
            {"params": params}, x_btd, POSITIONS_BT, SEGMENTS_BT, prefix_bt=prefix_bt
        )[0],
        x_btd,
    )
    without_prefix = [CAUSAL[0], CAUSAL[2], CAUSAL[2]]
    assert found == (TWO_SIDED if not causal else CAUSAL if has_prefix else without_prefix)


def test_gradients_from_the_source_of_a_context_vector_follow_segments():
    config = tiny_config(position="none", mixer="mean", bridge="context_vector")
    stack = Stack(config, layers=1, causal=True, cross=True)
    x, source = random_array(3, 6, config.width), random_array(3, 4, config.width)
    sources = dict(source_segments_bs=SOURCE_SEGMENTS_BS)
    params = random_params(stack, x, source_bsd=source, **sources)

    def hidden(source):
        return stack.apply(
            {"params": params}, x, POSITIONS_BT, SEGMENTS_BT, source_bsd=source, **sources
        )[0]

    assert influence(hidden, source) == CROSS


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@every_position
def test_past_logits_ignore_future_tokens(family, position):
    config = tiny_config(family=family, position=position)
    target = unpadded(ROWS, COLUMNS, seed=0)
    source = [unpadded(ROWS, COLUMNS, seed=7)] if family == "encoder_decoder" else []
    logits = text_logits(config, target, *source)
    for cut in (1, 6, COLUMNS - 1):
        future = np.arange(COLUMNS)[None] >= cut
        others = text_logits(config, target.with_other(future), *source)
        np.testing.assert_array_equal(logits[:, :cut], others[:, :cut])
        changed_bt = np.abs(logits - others).max(axis=-1) > 1e-4
        assert changed_bt[:, cut:].all(), "the present and the past are seen"


def test_encoder_logits_see_both_ways():
    config = tiny_config(family="encoder", position="rope")
    rows = unpadded(ROWS, COLUMNS, seed=0)
    last = np.arange(COLUMNS)[None] == COLUMNS - 1
    difference = text_logits(config, rows) - text_logits(config, rows.with_other(last))
    assert (np.abs(difference).max(axis=-1) > 1e-5).all()


@pytest.mark.parametrize("position", ["learned", "t5_bias"])
def test_a_prefix_is_bidirectional_and_the_rest_causal(position):
    config = tiny_config(family="decoder", position=position)
    rows = pack([tokens(10, seed=0)], [tokens(8, seed=1)], [], columns=COLUMNS)
    prefix = np.zeros((ROWS, COLUMNS), np.int32)
    prefix[:, :4] = 1

    def changed_by(column):
        changed = rows.with_other(np.arange(COLUMNS)[None] == column)
        difference = text_logits(config, changed, prefix=prefix) - logits
        return [[bool(d.any()) for d in piece] for piece in rows.pick(difference)]

    logits = text_logits(config, rows, prefix=prefix)
    assert changed_by(3) == [[True] * 10, [True] * 8]
    assert changed_by(4) == [[False] * 4 + [True] * 6, [False] * 4 + [True] * 4]
    assert changed_by(6) == [[False] * 6 + [True] * 4, [False] * 6 + [True] * 2]
