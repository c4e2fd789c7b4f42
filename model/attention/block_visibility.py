"""Finds the pairs of blocks with visible keys, without a mask of all queries and keys."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.masks import PADDING, Locality, SequenceInfo


def visible_pairs(
    queries: SequenceInfo, keys: SequenceInfo, causal: bool, locality: Locality | None
) -> Array:
    """Returns whether a block of queries may see a block of keys in any row, (I, J).

    Arrays of `queries` are (I, B, T), those of `keys` (J, B, S). Only bounds of segments and
    positions are compared, so a pair without visible keys may be True. False is always right.
    """
    q, k = Extent.of(queries), Extent.of(keys)
    q = jax.tree.map(lambda x: x[:, None], q)
    visible_ijb = (q.first_segment <= k.last_segment) & (k.first_segment <= q.last_segment)
    if causal:
        # In the order of (segment, position), the first key is not after the last query.
        behind_ijb = (k.first_segment < q.last_segment) | (
            (k.first_segment == q.last_segment) & (k.first_position <= q.last_position)
        )
        # This is exact within one segment; over several, the positions are a second bound.
        behind_ijb &= k.least_position <= q.greatest_position
        if k.prefix is not None:
            behind_ijb |= k.prefix
        visible_ijb &= behind_ijb
    if locality is not None:
        before, after = locality.reach
        is_local_ijb = k.greatest_position >= q.least_position - before
        is_local_ijb &= k.least_position <= q.greatest_position + after
        if k.is_global is not None:
            is_local_ijb |= q.is_global | k.is_global
        visible_ijb &= is_local_ijb
    return visible_ijb.any(axis=-1)


class Extent(NamedTuple):
    """Bounds of each block's tokens, without padding: (I, B) or (J, B)."""

    first_segment: Array
    last_segment: Array
    first_position: Array  # of the first segment
    last_position: Array  # of the last segment
    least_position: Array
    greatest_position: Array
    prefix: Array | None  # whether the block has a token of a prefix
    is_global: Array | None

    @staticmethod
    def of(info: SequenceInfo) -> "Extent":
        positions, segments = jnp.broadcast_arrays(info.positions_bt, info.segments_bt)
        is_token = segments != PADDING

        def least(x, where=is_token):
            return jnp.where(where, x, jnp.iinfo(x.dtype).max).min(axis=-1)

        def greatest(x, where=is_token):
            return jnp.where(where, x, jnp.iinfo(x.dtype).min).max(axis=-1)

        def holds(x):
            return None if x is None else (x.astype(bool) & is_token).any(axis=-1)

        first, last = least(segments), greatest(segments)
        return Extent(
            first,
            last,
            least(positions, is_token & (segments == first[..., None])),
            greatest(positions, is_token & (segments == last[..., None])),
            least(positions),
            greatest(positions),
            holds(info.prefix_bt),
            holds(info.global_bt),
        )
