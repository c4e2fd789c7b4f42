"""Which blocks of keys no query of a block can see, found without looking at every pair."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.masks import PADDING, Locality, SequenceInfo


def visible_pairs(
    queries: SequenceInfo, keys: SequenceInfo, causal: bool, locality: Locality | None
) -> Array:
    """Which blocks of queries may see which blocks of keys, in any row: (query, key blocks).

    Both sides come in blocks (N, B, T). Judged by the least and the greatest segment and position
    of each block, so it may be true in vain but is never false in vain, whatever the columns hold.
    """
    q, k = Extent.of(queries), Extent.of(keys)
    q = jax.tree.map(lambda x: x[:, None], q)
    seen_ijb = (q.first_segment <= k.last_segment) & (k.first_segment <= q.last_segment)
    if causal:
        # In the order of (segment, position), the first key comes after the last query.
        behind_ijb = (k.first_segment < q.last_segment) | (
            (k.first_segment == q.last_segment) & (k.first_position <= q.last_position)
        )
        # Within one segment the above is exact; over several, positions bound it as well.
        behind_ijb &= k.least_position <= q.greatest_position
        if k.prefix is not None:
            behind_ijb |= k.prefix
        seen_ijb &= behind_ijb
    if locality is not None:
        before, after = locality.reach
        near_ijb = k.greatest_position >= q.least_position - before
        near_ijb &= k.least_position <= q.greatest_position + after
        if k.is_global is not None:
            near_ijb |= q.is_global | k.is_global
        seen_ijb &= near_ijb
    return seen_ijb.any(axis=-1)


class Extent(NamedTuple):
    """Bounds of what a block holds besides padding, (N, B)."""

    first_segment: Array
    last_segment: Array
    first_position: Array  # of the first segment
    last_position: Array  # of the last segment
    least_position: Array
    greatest_position: Array
    prefix: Array | None  # whether it holds any
    is_global: Array | None

    @staticmethod
    def of(info: SequenceInfo) -> "Extent":
        positions, segments = jnp.broadcast_arrays(info.positions_bt, info.segments_bt)
        held = segments != PADDING

        def least(x, where=held):
            return jnp.where(where, x, jnp.iinfo(x.dtype).max).min(axis=-1)

        def greatest(x, where=held):
            return jnp.where(where, x, jnp.iinfo(x.dtype).min).max(axis=-1)

        def holds(x):
            return None if x is None else (x.astype(bool) & held).any(axis=-1)

        first, last = least(segments), greatest(segments)
        return Extent(
            first,
            last,
            least(positions, held & (segments == first[..., None])),
            greatest(positions, held & (segments == last[..., None])),
            least(positions),
            greatest(positions),
            holds(info.prefix_bt),
            holds(info.global_bt),
        )
