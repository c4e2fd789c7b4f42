"""Recurrent kinds of attention: decoding in chunks equals one full pass."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.heads import LanguageModel
from model.kv_cache import empty_cache
from tests.model import test_kv_cache
from tests.model.examples import (
    left_padded,
    pack,
    text_logits,
    text_params,
    tokens,
    unpadded,
)
from tests.model.test_kv_cache import (
    COLUMNS,
    ROWS,
    SLOTS,
    assert_same_at_real_tokens,
    decode_in_chunks,
)
from tests.tiny import tiny_config

small = functools.partial(tiny_config, attention_features=8, position="rope")
DECODERS = {
    "linear": dict(attention="linear"),
    "performer": dict(attention="performer"),
    "relu": dict(attention="performer", attention_kernel="relu"),
    "pattern": dict(attention="linear,dot,performer", decoder_layers=4),
}


def decoder(name, **changes):
    return small(family="decoder", kv_heads=2, **DECODERS[name] | changes)


def layer_bytes(config, slots, **options):
    cache = jax.eval_shape(lambda: empty_cache(config, ROWS, slots, **options))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.layers))


@pytest.mark.parametrize("keep_tokens", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_left_padding_and_grouped_heads(name, keep_tokens, monkeypatch):
    config = decoder(name)
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    if keep_tokens:
        keeping = functools.partial(empty_cache, keep_tokens=True)
        monkeypatch.setattr(test_kv_cache, "empty_cache", keeping)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 1, 5))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_encoder_decoder_with_a_padded_source(kind):
    config = small(family="encoder_decoder", attention=kind)
    target = unpadded(ROWS, COLUMNS, seed=0)
    source = pack(*([tokens(n, seed=n)] for n in (5, COLUMNS, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, target, source)
    assert_same_at_real_tokens(target, cached, text_logits(config, target, source))


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_a_packed_source_is_read_by_its_own_target(kind):
    config = small(family="encoder_decoder", attention=kind)
    targets = [tokens(n, seed=n) for n in (4, 5, 2)]
    sources = [tokens(n, seed=20 + n) for n in (3, 2, 6)]
    together = pack(targets, columns=COLUMNS), pack(sources, columns=COLUMNS)
    packed = together[0].pick(text_logits(config, *together))
    rows = (pack(*([x] for x in texts), columns=COLUMNS) for texts in (targets, sources))
    alone, source = rows
    for one, other in zip(packed, alone.pick(text_logits(config, alone, source)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_the_first_call_attends_to_a_prefix_bidirectionally(kind):
    config = decoder(kind)
    rows = unpadded(ROWS, COLUMNS, seed=5)
    prefix = np.zeros((ROWS, COLUMNS), np.int32)
    prefix[0, :6], prefix[1, :3] = 1, 1  # up to the end of the first call, less, and none
    cached = decode_in_chunks(config, rows, prefix=prefix)
    full = text_logits(config, rows, prefix=prefix)
    assert_same_at_real_tokens(rows, cached, full)
    assert not np.allclose(full[:2, 0], text_logits(config, rows)[:2, 0], atol=1e-3)


def test_the_cache_does_not_grow_with_the_slots():
    for name in ("linear", "performer"):
        config = decoder(name, dtype="bfloat16")
        size = layer_bytes(config, SLOTS)
        assert layer_bytes(config, 100 * SLOTS) == size
        assert layer_bytes(config, 100 * SLOTS, keep_tokens=True) > size
        # The state is float32, whatever the model's type.
        features = config.head_size if name == "linear" else config.attention_features
        numbers = features * (config.head_size + 1 + (name == "performer"))
        layer = ROWS * (config.kv_heads * numbers + 1)
        assert size == 4 * config.decoder_layers * layer
    mixed = decoder("pattern")
    one_dot_layer = dataclasses.replace(mixed, attention="dot", decoder_layers=1)
    grown = layer_bytes(mixed, 2 * SLOTS) - layer_bytes(mixed, SLOTS)
    assert grown == layer_bytes(one_dot_layer, SLOTS)


@pytest.mark.parametrize("hides", [dict(visible_bts=True), dict(index=True)], ids=str)
def test_masks_that_a_recurrent_state_cannot_apply_are_refused(hides):
    config = decoder("linear")
    cache = empty_cache(config, ROWS, SLOTS)
    options = {}
    if "index" in hides:  # rows at places of their own: some were taken back
        cache = cache.replace(index=jnp.zeros(ROWS, jnp.int32))
    else:
        options["visible_bts"] = jnp.ones((ROWS, 1, SLOTS), bool)
    inputs = np.zeros((ROWS, 1), np.int32)
    with pytest.raises(ValueError, match="no token can be masked in a recurrent state"):
        LanguageModel(config).apply(
            {"params": text_params(config)}, inputs, cache=cache, method="decode", **options
        )
