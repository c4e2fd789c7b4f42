"""Linear attention against explicit weights, for every mask."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.interface import KeyValues
from model.attention.linear import elu_plus_one, linear_attention, slot_attention
from model.attention.performer import RELU_EPSILON, relu_features, softmax_features
from model.masks import MaskSpec, SequenceInfo
from tests.tiny import quick_jit

B, T, S, H, G, K, M = 2, 13, 9, 4, 2, 8, 12
SCALE, CHUNK = 0.35, 4
DIRECTIONS = np.random.default_rng(7).normal(size=(M, K)).astype(np.float32)
# Padding before, between and behind; a segment of one token, one longer than two chunks.
SEGMENTS = np.array([[0, 0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 3, 0], [4] * 10 + [0] * 3], np.int32)
# In another order than the queries', and with nothing for segment 3.
SOURCE_SEGMENTS = np.array([[2, 2, 2, 1, 1, 0, 5, 5, 5], [4] * 8 + [0]], np.int32)

MAPS = {
    "linear": elu_plus_one(K),
    "performer": softmax_features(DIRECTIONS, SCALE),
    "relu": relu_features(DIRECTIONS, SCALE),
}
MASK_NAMES = ("causal", "two_sided", "prefix", "cross")
every_map = pytest.mark.parametrize("kind", MAPS)


def features(kind, x, xp=np):
    """phi(x), from the papers."""
    scaled = x * SCALE**0.5
    match kind:
        case "linear":
            return xp.where(x > 0, x + 1, xp.exp(xp.minimum(x, 0)))
        case "performer":
            norm = (scaled * scaled).sum(axis=-1, keepdims=True)
            return xp.exp(scaled @ DIRECTIONS.T - norm / 2) / M**0.5
        case "relu":
            return xp.maximum(scaled @ DIRECTIONS.T / M**0.5, 0) + RELU_EPSILON


def written_out(kind, q, k, v, mask, xp=np):
    """All T x S weights of each head."""
    heads = []
    for head in range(q.shape[2]):
        group = head // (q.shape[2] // k.shape[2])
        of_queries, of_keys = features(kind, q[:, :, head], xp), features(kind, k[:, :, group], xp)
        weights = xp.where(mask[:, 0], of_queries @ xp.swapaxes(of_keys, 1, 2), 0)
        total = weights.sum(axis=-1, keepdims=True)
        heads.append(weights @ v[:, :, group] / xp.where(total > 0, total, 1))
    return xp.stack(heads, axis=2)


def positions_in(segments):
    return np.array(
        [[int((row[:t] == row[t]).sum()) for t in range(len(row))] for row in segments], np.int32
    )


def named_mask_spec(name: str) -> MaskSpec:
    queries = keys = SequenceInfo(jnp.asarray(positions_in(SEGMENTS)), jnp.asarray(SEGMENTS))
    if name == "prefix":
        keys = dataclasses.replace(keys, prefix_bt=(keys.positions_bt < 3).astype(jnp.int32))
    if name == "cross":
        keys = SequenceInfo(jnp.arange(S)[None], jnp.asarray(SOURCE_SEGMENTS))
    return MaskSpec(queries, keys, causal=name in ("causal", "prefix"))


def arrays(keys=T, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    q, k = (rng.normal(size=s) * size for s in ((B, T, H, K), (B, keys, G, K)))
    return q, k, rng.normal(size=(B, keys, G, K))


def as_float32(*values):
    return [jnp.asarray(x, jnp.float32) for x in values]


@functools.cache
def compiled(kind):
    def attend(q, k, v, mask_spec, state=None):
        return linear_attention(q, k, v, MAPS[kind], mask_spec, state=state, chunk=CHUNK)

    return quick_jit(attend)


@pytest.mark.parametrize("mask_name", MASK_NAMES)
@every_map
def test_output_and_gradients(kind, mask_name):
    mask_spec = named_mask_spec(mask_name)
    mask = np.asarray(mask_spec.mask_b1ts())
    qkv = arrays(keys=S if mask_name == "cross" else T)
    probe = np.random.default_rng(1).normal(size=(B, T, H, K)).astype(np.float32)

    @quick_jit
    def ours(q, k, v):
        def probed(q, k, v):
            y, _ = linear_attention(q, k, v, MAPS[kind], mask_spec, chunk=CHUNK)
            return (y * probe).sum(), y

        return jax.grad(probed, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    def theirs(q, k, v):
        return (written_out(kind, q, k, v, mask, jnp) * probe).sum()

    gradients, y = ours(*as_float32(*qkv))
    in_one_chunk, _ = linear_attention(*as_float32(*qkv), MAPS[kind], mask_spec)
    np.testing.assert_allclose(in_one_chunk, y, rtol=0, atol=3e-6)
    np.testing.assert_allclose(y, written_out(kind, *qkv, mask), rtol=0, atol=3e-6)
    blind = ~mask.any(axis=(1, 3))
    assert blind.any() and not np.asarray(y)[blind].any()
    expected = quick_jit(jax.grad(theirs, argnums=(0, 1, 2)))(*as_float32(*qkv))
    for name, one, other in zip("qkv", gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5, err_msg=name)


@every_map
def test_bfloat16(kind):
    mask_spec = named_mask_spec("causal")
    qkv = [jnp.asarray(x, jnp.bfloat16) for x in arrays()]
    y, state = compiled(kind)(*qkv, mask_spec)
    assert y.dtype == jnp.bfloat16 and state.total_bgmw.dtype == jnp.float32
    exact = written_out(kind, *(np.asarray(x, np.float64) for x in qkv), mask_spec.mask_b1ts())
    # Only the last rounding is of bfloat16.
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("mask_name", ["causal", "two_sided"])
@every_map
def test_packed_segments_equal_single_rows(kind, mask_name):
    mask_spec, qkv = named_mask_spec(mask_name), as_float32(*arrays())
    together, _ = compiled(kind)(*qkv, mask_spec)
    for row, segment in ((0, 1), (0, 2), (0, 3), (1, 4)):
        own = np.flatnonzero(SEGMENTS[row] == segment)
        fill = lambda x, own=own: jnp.zeros_like(x).at[:, : len(own)].set(x[:, own])  # noqa: E731
        ones = fill(jnp.ones_like(SEGMENTS))
        sequence_info = SequenceInfo(jnp.broadcast_to(jnp.arange(T), (B, T)), ones)
        y, _ = compiled(kind)(
            *map(fill, qkv), MaskSpec(sequence_info, sequence_info, mask_spec.causal)
        )
        np.testing.assert_allclose(together[row, own], y[row, : len(own)], rtol=0, atol=3e-6)


@every_map
def test_chunks_with_a_recurrent_state_equal_one_pass(kind):
    """As with a cache: a prompt with padding, then single tokens, then a longer chunk."""
    mask_spec, qkv = named_mask_spec("causal"), as_float32(*arrays())
    full, expected_state = compiled(kind)(*qkv, mask_spec)
    state, pieces, start = None, [], 0
    for size in (5, 1, 1, 5, 1):
        now = slice(start, start + size)
        part = jax.tree.map(lambda x, now=now: x[:, now], mask_spec)
        y, state = compiled(kind)(*(x[:, now] for x in qkv), part, state)
        pieces.append(y)
        start += size
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), full, rtol=0, atol=3e-6)
    np.testing.assert_array_equal(state.segment_b, [3, 4])
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, expected_state)


@every_map
def test_slots_with_any_mask(kind):
    q, k, v = arrays(keys=S)
    mask = np.random.default_rng(3).random((B, 1, T, S)) < 0.5
    mask[1, :, 4] = False
    # Invisible keys must not matter, not even very large ones.
    mask[0, ..., 2] = False
    k[0, 2], v[0, 2] = 60.0, 1e6
    q32, k32, v32 = as_float32(q, k, v)
    cache = KeyValues.of(k32, v32)
    y = slot_attention(q32, cache.key_bgks, cache.value_bgsk, MAPS[kind], jnp.asarray(mask))
    v[0, 2] = 0
    np.testing.assert_allclose(y, written_out(kind, q, k, v, mask), rtol=0, atol=3e-6)
    assert not y[1, 4].any()


@pytest.mark.parametrize("mask_name", ["causal", "two_sided"])
def test_large_inputs(mask_name):
    """With |q| and |k| at 30, logarithms of features are some hundred below zero."""
    mask_spec, (q, k, v) = named_mask_spec(mask_name), arrays()
    q, k = (30 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    assert np.log(features("performer", k)).mean() < -150

    @quick_jit
    def gradients(q, k, v):
        def probed(q, k, v):
            y, _ = linear_attention(q, k, v, MAPS["performer"], mask_spec, chunk=CHUNK)
            return (y * y).sum(), y

        return jax.grad(probed, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    found, y = gradients(*as_float32(q, k, v))
    mask = np.asarray(mask_spec.mask_b1ts())
    # float64 holds such features themselves; float32 rounds their logarithms.
    np.testing.assert_allclose(y, written_out("performer", q, k, v, mask), rtol=0, atol=1e-3)
    for gradient in found:
        assert np.isfinite(gradient).all() and gradient.any()


def test_a_segment_with_tiny_features_survives_a_larger_one_before_it():
    """Each segment's sums have their own scale, here exp(-150) of those before."""
    segments = np.array([[1] * 6 + [2] * (T - 6)] * B, np.int32)
    sequence_info = SequenceInfo(jnp.asarray(positions_in(segments)), jnp.asarray(segments))
    mask_spec = MaskSpec(sequence_info, sequence_info, causal=True)
    q, k, v = arrays()
    k[:, 6:] *= (2 * 150 / SCALE) ** 0.5 / np.linalg.norm(k[:, 6:], axis=-1, keepdims=True)
    y, state = compiled("performer")(*as_float32(q, k, v), mask_spec)
    exact = written_out("performer", q, k, v, np.asarray(mask_spec.mask_b1ts()))
    # Of its first chunk alone, which it shares with the large ones, something may be lost.
    np.testing.assert_allclose(y[:, 8:], exact[:, 8:], rtol=0, atol=1e-3)
    assert np.isfinite(y).all()
    largest = np.log(features("performer", k[:, 6:])).max(axis=1)
    np.testing.assert_allclose(state.top_bgm, largest, rtol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_memory_grows_with_the_length(kind):
    @functools.cache
    def temporary_bytes(length):
        sequence_info = SequenceInfo(jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))
        mask_spec = MaskSpec(sequence_info, sequence_info, causal=True)

        def probed(q, k, v):
            return linear_attention(q, k, v, MAPS[kind], mask_spec, chunk=32)[0].sum()

        shape = jax.ShapeDtypeStruct((1, length, 1, K), jnp.float32)
        lowered = jax.jit(jax.grad(probed, argnums=(0, 1, 2))).lower(shape, shape, shape)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(2048) < 2.2 * temporary_bytes(1024)
    assert temporary_bytes(1024) < 1024 * 1024  # one T x T matrix of single bytes
