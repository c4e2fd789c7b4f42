"""The one rule of masks, written out as matrices: rows are queries, columns are keys."""

import jax.numpy as jnp
import numpy as np

from model.masks import attention_mask, positions_or_default, segments_or_default


def mask(query, key=None, *, causal, prefix=None):
    """The mask of one row as zeros and ones; `query` and `key` are (positions, segments)."""
    key = key or query
    (query_positions, query_segments), (key_positions, key_segments) = (
        [jnp.array([values]) for values in info] for info in (query, key)
    )
    mask_b1ts = attention_mask(
        query_positions, key_positions, query_segments, key_segments,
        causal=causal, key_prefix_bs=None if prefix is None else jnp.array([prefix]),
    )  # fmt: skip
    assert mask_b1ts.dtype == bool
    assert mask_b1ts.shape == (1, 1, len(query[0]), len(key[0]))
    return mask_b1ts[0, 0].astype(int).tolist()


def test_causal():
    assert mask(([0, 1, 2, 3], [1, 1, 1, 1]), causal=True) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


def test_two_sided():
    assert mask(([0, 1], [1, 1]), causal=False) == [[1, 1], [1, 1]]


def test_padding_neither_attends_nor_is_attended_to():
    assert mask(([0, 1, 2, 3], [1, 1, 0, 0]), causal=False) == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_padding_on_the_left():
    assert mask(([0, 0, 0, 1], [0, 0, 1, 1]), causal=True) == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 1],
    ]


def test_packed_causal():
    assert mask(([0, 1, 0, 1, 2, 0], [1, 1, 2, 2, 2, 0]), causal=True) == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_packed_two_sided():
    assert mask(([0, 1, 0, 1, 0], [1, 1, 2, 2, 0]), causal=False) == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]


def test_a_prefix_is_bidirectional_and_the_rest_causal():
    assert mask(([0, 1, 2, 3], [1, 1, 1, 1]), causal=True, prefix=[1, 1, 0, 0]) == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


def test_packed_prefixes_stay_in_their_segments():
    query = ([0, 1, 2, 0, 1, 0], [1, 1, 1, 2, 2, 0])
    # The last column is padding: being marked as a prefix does not make it visible.
    assert mask(query, causal=True, prefix=[1, 1, 0, 1, 0, 1]) == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_cross_attention_pairs_segments_of_both_sides():
    target, source = ([0, 1, 0, 0], [1, 1, 2, 0]), ([0, 0, 1, 2, 0], [1, 2, 2, 2, 0])
    assert mask(target, source, causal=False) == [
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]


def test_cached_query_sees_filled_slots_only():
    # Positions of empty slots are 0, "before" the query: their segment masks them.
    assert mask(([2], [1]), ([0, 1, 2, 0, 0], [1, 1, 1, 0, 0]), causal=True) == [[1, 1, 1, 0, 0]]


def test_cached_chunk_after_left_padding():
    chunk, slots = ([1, 2], [1, 1]), ([0, 0, 0, 1, 2, 0], [0, 0, 1, 1, 1, 0])
    assert mask(chunk, slots, causal=True) == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
    ]


def test_rows_differ():
    segments = jnp.array([[1, 1], [1, 0]])
    positions = jnp.array([[0, 1]])  # one row of positions serves all
    mask_b1ts = attention_mask(positions, positions, segments, segments, causal=True)
    expected = [[[[True, False], [True, True]]], [[[True, False], [False, False]]]]
    assert mask_b1ts.tolist() == expected


def test_defaults_are_one_segment_counted_from_zero():
    like = np.zeros((3, 4), np.int32)
    assert positions_or_default(None, like).tolist() == [[0, 1, 2, 3]]
    assert segments_or_default(None, like).tolist() == [[1, 1, 1, 1]]
    given = np.full((3, 4), 7, np.int32)
    assert positions_or_default(given, like) is given
    assert segments_or_default(given, like) is given
