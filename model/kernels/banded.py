"""Attention to a stretch of keys around each query: time and memory grow with the length alone.

Rows are cut into blocks of queries. A block comes with the stretch of keys that any of its queries
may see, and is then a row of its own for plain attention: what the mask hides inside the stretch is
wasted, what lies outside was never computed.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.kernels.dot import dot_attention
from model.masks import Near, Side, Sight
from model.positions import ScoreBias


class Band(NamedTuple):
    """Keys and values, and which of them are near enough to a query to be seen."""

    k_bsgk: Array
    v_bsgk: Array
    near: Near


class Stretch(NamedTuple):
    """What one block of queries sees; the batch is of all blocks of all rows."""

    k_bsgk: Array
    v_bsgk: Array
    mask_b1ts: Array
    bias_bhts: Array | None


def banded_attention(
    q_bthk: Array,
    bands: Sequence[Band],
    sight: Sight,
    *,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Softmax over the keys of all bands together."""
    before, after = reach(max(bands, key=lambda band: sum(band.near.reach)).near, sight)
    blocks = Blocks(q_bthk.shape[1], block_size(before, after, q_bthk.shape[1]))
    queries = blocks.of_queries(q_bthk, sight.queries)
    stretches = [blocks.stretch(queries, band, sight, bias, scale) for band in bands]
    y_bthk = attend(
        queries[0], stretches, scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key
    )
    return blocks.whole(y_bthk)


def attend(q_bthk: Array, stretches: Sequence[Stretch], **options) -> Array:
    """Plain attention of each block to all of its stretches, end to end."""
    k_bsgk, v_bsgk, mask_b1ts, bias_bhts = zip(*stretches, strict=True)
    return dot_attention(
        q_bthk,
        jnp.concatenate(k_bsgk, axis=1),
        jnp.concatenate(v_bsgk, axis=1),
        mask_b1ts=jnp.concatenate(mask_b1ts, axis=3),
        bias_bhts=None if bias_bhts[0] is None else jnp.concatenate(bias_bhts, axis=3),
        **options,
    )


def reach(near: Near, sight: Sight) -> tuple[int, int]:
    """How many columns before and after a query may hold a key that it sees."""
    before, after = near.reach
    looks_back_only = sight.causal and sight.keys.prefix_bt is None
    return before, 0 if looks_back_only else after


def block_size(before: int, after: int, length: int) -> int:
    """Large blocks make large products, but their stretches hold more that no query sees."""
    size = 64
    while size < min(256, (before + after) // 2, length):
        size *= 2
    return size


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Rows of `length` columns as blocks of `size`, the last one filled up with padding."""

    length: int
    size: int

    def of_queries(self, q_bthk: Array, side: Side) -> tuple[Array, Side]:
        """Queries and what is known of them, with a row for each block."""
        fold = lambda x: self.stretch_of(x, 0, 0)  # noqa: E731
        return fold(q_bthk), jax.tree.map(fold, _for_rows(side, len(q_bthk)))

    def stretch(
        self,
        queries: tuple[Array, Side],
        band: Band,
        sight: Sight,
        bias: ScoreBias | None,
        scale: float,
    ) -> Stretch:
        """The keys of a band that each block may see."""
        q_bthk, query_side = queries
        before, after = reach(band.near, sight)
        fold = lambda x: self.stretch_of(x, before, after)  # noqa: E731
        key_side = jax.tree.map(fold, _for_rows(sight.keys, len(band.k_bsgk)))
        seen = Sight(query_side, key_side, sight.causal, band.near)
        bias_bhts = None
        if bias is not None:
            scaled_bthk = q_bthk * jnp.asarray(scale, q_bthk.dtype)
            bias_bhts = bias(scaled_bthk, query_side.positions_bt, key_side.positions_bt)
        return Stretch(fold(band.k_bsgk), fold(band.v_bsgk), seen.mask_b1ts(), bias_bhts)

    def stretch_of(self, x: Array, before: int, after: int) -> Array:
        """Each block of an array (B, length, ...) with so many columns at its sides, as a row."""
        count = -(-self.length // self.size)
        blocks_before, blocks_after = -(-before // self.size), -(-after // self.size)
        padding = count * self.size - self.length
        sides = (blocks_before * self.size, padding + blocks_after * self.size)
        x = jnp.pad(x, ((0, 0), sides, *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(len(x), -1, self.size, *x.shape[2:])
        pieces = [x[:, n : n + count] for n in range(blocks_before + 1 + blocks_after)]
        x = jnp.concatenate(pieces, axis=2)
        return x.reshape(-1, *x.shape[2:])

    def whole(self, y_bthk: Array) -> Array:
        """Blocks put together to rows again."""
        count = -(-self.length // self.size)
        y_bthk = y_bthk.reshape(-1, count * self.size, *y_bthk.shape[2:])
        return y_bthk[:, : self.length]


def _for_rows(side: Side, rows: int) -> Side:
    """With a row for each row of the batch."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape[1:])), side)
