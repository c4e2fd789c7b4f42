"""Blockwise attention equals plain attention with an explicit mask, for every feature."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.blockwise import blockwise_attention, visible_pairs
from model.attention.dot_attention import dot_attention
from model.masks import Locality, MaskSpec, SequenceInfo
from model.positions import ScoreBias, alibi_slopes
from tests.tiny import quick_jit

B, T, S, H, G, K = 2, 13, 10, 4, 2, 8
BLOCK = 4  # divides neither length
SCALE, RATE = 0.4, 0.3

ROW = np.arange(T)
PACKED = np.array([[1] * 5 + [2] * 6 + [0] * 2, [1] * 2 + [2] * 2 + [3] * 9])
PADDED_LEFT = np.array([[0] * 3 + [1] * 10, [0] * 9 + [1] * 4])
HOLES = np.array([[1, 1, 0, 0, 1, 1, 1, 0, 2, 2, 0, 2, 2], [1] * 13])


def positions_of(segments):
    """From zero on in each run of a segment; padding is at zero."""
    positions = np.zeros_like(segments)
    for n in range(1, segments.shape[1]):
        goes_on = (segments[:, n] == segments[:, n - 1]) & (segments[:, n] != 0)
        positions[:, n] = np.where(goes_on, positions[:, n - 1] + 1, 0)
    return positions


def sequence_info(segments, positions=None, prefix=None, is_global=None):
    positions = positions_of(segments) if positions is None else positions
    as_array = lambda x, dtype: None if x is None else jnp.asarray(x, dtype)  # noqa: E731
    return SequenceInfo(
        as_array(positions, jnp.int32),
        as_array(segments, jnp.int32),
        as_array(prefix, jnp.int32),
        as_array(is_global, bool),
    )


def itself(causal, locality=None, **options):
    both = sequence_info(**options)
    return MaskSpec(both, both, causal, locality)


ALL = np.ones((1, T), int)
SHUFFLED = np.random.default_rng(5).permutation(T)[None]
SOURCE = sequence_info(np.array([[1] * 4 + [2] * 6, [2] * 3 + [3] * 5 + [0] * 2]))
FLAGS = np.arange(T)[None] % 6 == 1

MASK_SPECS = {
    "two-sided": itself(False, segments=ALL),
    "causal": itself(True, segments=ALL),
    "padding": itself(False, segments=(ROW < [[13], [7]]).astype(int)),
    "padding on the left, causal": itself(True, segments=PADDED_LEFT),
    "packed": itself(False, segments=PACKED),
    "packed, causal": itself(True, segments=PACKED),
    "holes, causal": itself(True, segments=HOLES, positions=ROW[None]),
    "prefix": itself(True, segments=PACKED, prefix=positions_of(PACKED) < 3),
    "positions reversed": itself(True, segments=ALL, positions=ROW[None, ::-1]),
    "positions shuffled": itself(True, segments=ALL, positions=SHUFFLED),
    "packed, positions reversed": itself(True, segments=PACKED[:, ::-1], positions=SHUFFLED),
    "window": itself(False, Locality(window=3), segments=ALL),
    "packed, causal, window": itself(True, Locality(window=3), segments=PACKED),
    "window with gaps, global tokens": itself(
        False, Locality(window=2, dilation=2), segments=PACKED, is_global=FLAGS
    ),
    "causal, window, global tokens": itself(True, Locality(2), segments=ALL, is_global=FLAGS),
    "chunks": itself(False, Locality(chunk=4, before=2, after=1), segments=PACKED),
    "a source": MaskSpec(sequence_info(PACKED), SOURCE, causal=False),
    "a source that nobody sees": MaskSpec(
        sequence_info(PACKED), sequence_info(np.full((1, S), 7)), causal=False
    ),
}


def t5_bias(bidirectional):
    table = np.random.default_rng(2).normal(size=(8, H))
    table = jnp.asarray(table, jnp.float32)
    return ScoreBias("t5_bias", table, bidirectional=bidirectional, max_distance=9)


def arrays(keys=T, dtype=jnp.float32, groups=G):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    return draw(B, T, H, K), draw(B, keys, groups, K), draw(B, keys, groups, K)


def plain(q, k, v, mask_spec, bias=None, keep_bhts=None):
    """dot_attention with everything written out."""
    bias_bhts = None
    if bias is not None:
        bias_bhts = bias(None, mask_spec.queries.positions_bt, mask_spec.keys.positions_bt)
    given = dict(mask_b1ts=mask_spec.mask_b1ts(), bias_bhts=bias_bhts, scale=SCALE)
    if keep_bhts is None:
        return dot_attention(q, k, v, **given)
    # The identity as values shows the weights, dropped ones are then taken away by hand.
    eye = jnp.broadcast_to(jnp.eye(k.shape[1])[None, :, None], (B, k.shape[1], G, k.shape[1]))
    weights_bhts = jnp.moveaxis(dot_attention(q, k, eye, **given), 2, 1)
    return jnp.einsum("bhts,bshk->bthk", weights_bhts * keep_bhts, jnp.repeat(v, H // G, axis=2))


def blockwise(q, k, v, mask_spec, bias=None, **options):
    return blockwise_attention(q, k, v, mask_spec, bias=bias, scale=SCALE, block=BLOCK, **options)


def with_gradients(attention, qkv, mask_spec, bias=None, **options):
    """The output, and the gradients of a random projection of it to q, k, v and the bias table."""
    probe = np.random.default_rng(1).normal(size=(B, T, H, qkv[2].shape[-1])).astype(np.float32)

    def probed(qkv, bias):
        y = attention(*qkv, mask_spec, bias, **options)
        return (y.astype(jnp.float32) * probe).sum(), y

    gradients, y = quick_jit(jax.grad(probed, argnums=(0, 1), has_aux=True))(qkv, bias)
    return dict(zip("qkv", gradients[0], strict=True)) | {
        "y": y, "table": None if bias is None else gradients[1].table,
    }  # fmt: skip


def assert_same(found, expected, tolerance):
    for name, value in expected.items():
        if value is not None:
            assert found[name].dtype == value.dtype
            one, other = (np.asarray(x, np.float32) for x in (found[name], value))
            np.testing.assert_allclose(one, other, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", MASK_SPECS)
def test_blockwise_equals_plain_attention(name):
    mask_spec = MASK_SPECS[name]
    qkv, bias = arrays(mask_spec.keys.segments_bt.shape[1]), t5_bias(not mask_spec.causal)
    expected = with_gradients(plain, qkv, mask_spec, bias)
    assert_same(with_gradients(blockwise, qkv, mask_spec, bias), expected, 1e-5)


@pytest.mark.parametrize("groups", [1, H])
def test_groups_of_heads(groups):
    mask_spec, qkv = MASK_SPECS["packed, causal"], arrays(groups=groups)
    expected = with_gradients(plain, qkv, mask_spec)
    assert_same(with_gradients(blockwise, qkv, mask_spec), expected, 1e-5)


def test_alibi():
    mask_spec, bias = MASK_SPECS["packed, causal"], ScoreBias("alibi", jnp.asarray(alibi_slopes(H)))
    expected = with_gradients(plain, arrays(), mask_spec, bias)
    assert_same(with_gradients(blockwise, arrays(), mask_spec, bias), expected, 1e-5)


@pytest.mark.parametrize("name", ["packed, causal", "a source"])
def test_in_bfloat16_it_is_as_near_to_float32_as_plain_attention(name):
    """Both round inputs, weights and output; accumulators are of float32."""
    mask_spec = MASK_SPECS[name]
    keys, bias = mask_spec.keys.segments_bt.shape[1], t5_bias(not mask_spec.causal)
    qkv = arrays(keys, jnp.bfloat16)
    found = with_gradients(blockwise, qkv, mask_spec, bias)
    assert_same(found, with_gradients(plain, qkv, mask_spec, bias), 6e-2)
    exact = with_gradients(plain, tuple(x.astype(jnp.float32) for x in qkv), mask_spec, bias)
    for name, value in exact.items():
        np.testing.assert_allclose(found[name].astype(jnp.float32), value, atol=6e-2, err_msg=name)


def test_queries_that_see_nothing_get_zeros_and_give_no_gradients():
    for name in ("padding on the left, causal", "a source that nobody sees"):
        mask_spec = MASK_SPECS[name]
        found = with_gradients(blockwise, arrays(mask_spec.keys.segments_bt.shape[1]), mask_spec)
        blind_bt = ~np.asarray(mask_spec.mask_b1ts()).any(axis=(1, 3))
        assert blind_bt.any()
        blind_bt = np.broadcast_to(blind_bt, (B, T))
        assert not np.asarray(found["y"])[blind_bt].any()
        assert not np.asarray(found["q"])[blind_bt].any()


@pytest.mark.parametrize("name", ["packed, causal", "a source"])
def test_dropped_weights_are_the_same_in_both_passes(name):
    """The mask is read off the output for values of identity, then given to plain attention."""
    mask_spec = MASK_SPECS[name]
    keys = mask_spec.keys.segments_bt.shape[1]
    q, k, v = arrays(keys)
    drop = dict(dropout_rate=RATE, dropout_key=jax.random.key(3))
    eye = jnp.broadcast_to(jnp.eye(keys)[None, :, None], (B, keys, G, keys))
    dropped, undropped = (
        jnp.moveaxis(blockwise(q, k, eye, mask_spec, **options), 2, 1) for options in (drop, {})
    )
    softmax = np.asarray(undropped) > 0
    keep = np.where(softmax, np.asarray(dropped) / np.where(softmax, undropped, 1), 0)
    values = np.unique(keep[softmax].round(4))
    np.testing.assert_allclose(values, [0, 1 / (1 - RATE)], atol=1e-3)
    expected = with_gradients(plain, (q, k, v), mask_spec, keep_bhts=jnp.asarray(keep))
    assert_same(with_gradients(blockwise, (q, k, v), mask_spec, **drop), expected, 1e-5)


def test_dropout_keeps_its_share_of_weights_in_every_block():
    """Over all blocks; and no two blocks have the same mask."""
    length, head = 64, 64
    mask_spec = itself(False, segments=np.ones((1, length), int), positions=np.arange(length)[None])
    q = jnp.zeros((1, length, 2, head))
    eye = jnp.broadcast_to(jnp.eye(length)[None, :, None], (1, length, 2, head))
    y = quick_jit(
        lambda q, eye: blockwise_attention(
            q, q, eye, mask_spec, dropout_rate=RATE, dropout_key=jax.random.key(0), block=16
        )
    )(q, eye)
    is_kept_hts = np.moveaxis(np.asarray(y[0]), 1, 0) > 0
    # 8,192 draws: three standard deviations are 0.015
    assert abs(is_kept_hts.mean() - (1 - RATE)) < 0.015
    blocks = is_kept_hts.reshape(2, 4, 16, 4, 16).swapaxes(2, 3).reshape(32, -1)
    assert len(np.unique(blocks, axis=0)) == 32


def in_blocks(one_side):
    """A sequence in blocks of BLOCK columns, cut by hand."""

    def cut(x):
        x = np.asarray(x)
        count = -(-x.shape[1] // BLOCK)
        x = np.pad(x, ((0, 0), (0, count * BLOCK - x.shape[1])))
        return jnp.asarray(x.reshape(len(x), count, BLOCK).swapaxes(0, 1))

    return jax.tree.map(cut, one_side)


@pytest.mark.parametrize("name", MASK_SPECS)
def test_no_block_with_a_visible_pair_is_skipped(name):
    mask_spec = MASK_SPECS[name]
    visited = visible_pairs(
        in_blocks(mask_spec.queries),
        in_blocks(mask_spec.keys),
        mask_spec.causal,
        mask_spec.locality,
    )
    mask_ts = np.asarray(mask_spec.mask_b1ts()).any(axis=(0, 1))
    for i, j in np.ndindex(*visited.shape):
        softmax = mask_ts[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK].any()
        assert visited[i, j] or not softmax, (i, j)


def test_fully_masked_blocks_are_skipped():
    """Blocks are cut along segments or positions, so that their bounds decide."""
    length = 32
    segments = np.repeat([[1, 1, 1, 2, 2, 3, 3, 0]], 4, axis=1)
    halves = dict(segments=segments, positions=positions_of(segments))
    line = dict(segments=np.ones((1, length), int), positions=np.arange(length)[None])
    backward = line | dict(positions=np.arange(length)[None, ::-1])
    for mask_spec in (
        itself(True, **halves), itself(False, **halves), itself(True, **line),
        itself(True, **backward), itself(False, Locality(window=3), **line),
        itself(True, Locality(window=3), **line, is_global=np.arange(length)[None] == 0),
    ):  # fmt: skip
        visited = visible_pairs(
            in_blocks(mask_spec.queries),
            in_blocks(mask_spec.keys),
            mask_spec.causal,
            mask_spec.locality,
        )
        mask_ts = np.asarray(mask_spec.mask_b1ts())[0, 0]
        cells = mask_ts.reshape(length // BLOCK, BLOCK, length // BLOCK, BLOCK)
        np.testing.assert_array_equal(visited, cells.any(axis=(1, 3)))


def test_skipped_blocks_are_never_touched():
    """NaN in the keys of fully masked blocks does no harm."""
    mask_spec, (q, k, v) = MASK_SPECS["padding"], arrays()
    mask_spec = dataclasses.replace(mask_spec, keys=sequence_info((ROW[None] < 4).astype(int)))
    k, v = (x.at[:, BLOCK:].set(jnp.nan) for x in (k, v))
    assert np.isfinite(quick_jit(blockwise)(q, k, v, mask_spec)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length(causal):
    """The compiler's own account of temporary memory, forward and backward."""

    def temporary_bytes(length):
        shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        line = dict(segments=np.ones((1, length), int), positions=np.arange(length)[None])
        mask_spec = itself(causal, **line)

        def total(q, k, v):
            return blockwise_attention(q, k, v, mask_spec).sum()

        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(8192) < 2**1.1 * temporary_bytes(4096)
