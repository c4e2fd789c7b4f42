"""Decoding in chunks with a cache equals one full pass."""

import functools

import jax
import numpy as np
import pytest

from model.heads import LanguageModel
from model.kv_cache import empty_cache
from tests.model.examples import (
    DECODER_POSITIONS,
    POSITIONS,
    Rows,
    left_padded,
    pack,
    text_logits,
    text_params,
    tokens,
    unpadded,
)
from tests.tiny import quick_jit, tiny_config

every_position = pytest.mark.parametrize("position", POSITIONS)
ROWS, COLUMNS, SLOTS = 3, 12, 15  # three slots stay empty


@functools.cache
def compiled(config, method):
    return quick_jit(functools.partial(LanguageModel(config).apply, method=method))


def decode_in_chunks(
    config, target: Rows, source: Rows | None = None, *, prefix=None, say_where=True, chunks=(6, 6)
):
    """Logits (B, T, V) from one call a chunk; the source is shown to the first call alone."""
    variables = {"params": text_params(config)}
    cache = empty_cache(config, len(target.inputs), SLOTS, 0 if source is None else COLUMNS)
    first_options, every_options = {}, {}
    if prefix is not None:
        first_options["prefix_bt"] = prefix[:, : chunks[0]]
    if source is not None:
        first_options["source_bsd"] = compiled(config, "encode")(
            variables, source.inputs, segments_bt=source.segments
        )
        every_options["source_segments_bs"] = source.segments
    pieces, start = [], 0
    for size in chunks:
        now = slice(start, start + size)
        options = first_options | every_options
        if say_where:
            options |= dict(
                positions_bt=target.positions[:, now], segments_bt=target.segments[:, now]
            )
        logits, cache = compiled(config, "decode")(
            variables, target.inputs[:, now], cache=cache, **options
        )
        pieces.append(logits)
        start, first_options = start + size, {}
    assert int(cache.index) == start
    return np.concatenate(pieces, axis=1)


def assert_same_at_real_tokens(rows: Rows, cached, full):
    for piece, other in zip(rows.pick(cached), rows.pick(full), strict=True):
        np.testing.assert_allclose(piece, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", DECODER_POSITIONS)
def test_decoder_with_left_padding_and_grouped_heads(position):
    config = tiny_config(family="decoder", position=position, kv_heads=2)
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 1, 5))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


@every_position
def test_encoder_decoder_with_a_padded_source(position):
    config = tiny_config(family="encoder_decoder", position=position)
    target = unpadded(ROWS, COLUMNS, seed=0)
    source = pack(*([tokens(n, seed=n)] for n in (5, COLUMNS, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, target, source)
    assert_same_at_real_tokens(target, cached, text_logits(config, target, source))


@pytest.mark.parametrize("attention", ["dot", "local,dot"])  # a scan over layers, a pattern
def test_decoder_with_experts(attention):
    config = tiny_config(family="decoder", experts=5, attention=attention, attention_window=3)
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, rows, chunks=(10, 1, 1))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


@pytest.mark.parametrize(("mixer", "bridge"), [("lstm", "context_vector"), ("conv", "attention")])
def test_encoder_decoder_with_a_mixer(mixer, bridge):
    config = tiny_config(mixer=mixer, bridge=bridge, position="none")
    target = unpadded(ROWS, COLUMNS, seed=0)
    source = pack(*([tokens(n, seed=n)] for n in (5, COLUMNS, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, target, source)
    assert_same_at_real_tokens(target, cached, text_logits(config, target, source))


@pytest.mark.parametrize("position", ["learned", "rope", "t5_bias"])
def test_positions_go_on_from_the_cache(position):
    config = tiny_config(family="decoder", position=position)
    rows = unpadded(ROWS, COLUMNS, seed=4)
    cached = decode_in_chunks(config, rows, say_where=False)
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


@pytest.mark.parametrize("position", ["learned", "t5_bias"])
def test_the_first_call_attends_to_a_prefix_bidirectionally(position):
    config = tiny_config(family="decoder", position=position)
    rows = unpadded(ROWS, COLUMNS, seed=5)
    prefix = np.zeros((ROWS, COLUMNS), np.int32)
    prefix[0, :6], prefix[1, :3] = 1, 1  # up to the end of the first call, less, and none
    cached = decode_in_chunks(config, rows, prefix=prefix)
    full = text_logits(config, rows, prefix=prefix)
    assert_same_at_real_tokens(rows, cached, full)
    assert not np.allclose(full[:2, 0], text_logits(config, rows)[:2, 0], atol=1e-3)


def test_cache_holds_the_activations_type():
    config = tiny_config(family="decoder", dtype="bfloat16")
    rows = unpadded(ROWS, COLUMNS, seed=6)
    assert {leaf.dtype for leaf in jax.tree.leaves(empty_cache(config, ROWS, SLOTS).layers)} == {
        np.dtype("bfloat16")
    }
    cached, full = decode_in_chunks(config, rows), text_logits(config, rows)
    np.testing.assert_allclose(cached.astype(np.float32), full.astype(np.float32), atol=0.1)
