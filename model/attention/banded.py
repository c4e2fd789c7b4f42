"""Attention to the local keys of each query, with time and memory linear in the length.

Rows are cut into blocks of queries. Each block and the span of keys that its queries may see become
one row of `dot_attention`. Masked scores inside the span are computed and discarded; scores
outside of it are never computed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import dot_attention
from model.masks import Locality, MaskSpec, SequenceInfo
from model.positions import ScoreBias

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 256


class Band(NamedTuple):
    """Keys and values, and the locality that says which of them a query sees."""

    k_bsgk: Array
    v_bsgk: Array
    locality: Locality


class Everywhere(NamedTuple):
    """A few keys and values that every block of a row attends to."""

    k_bsgk: Array
    v_bsgk: Array
    info: SequenceInfo
    # Returns the mask (B, 1, T, S) of queries and these keys.
    sees: Callable[[SequenceInfo, SequenceInfo], Array]
    weight_bs: Array | None = None  # the number of keys that each one represents; None: 1


def banded_attention(
    q_bthk: Array,
    bands: Sequence[Band],
    mask_spec: MaskSpec,
    *,
    everywhere: Everywhere | None = None,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    sinks_h: Array | None = None,
) -> Array:
    """Softmax attention over the keys of all bands and of `everywhere` together, (B, T, H, K)."""
    batch, length = q_bthk.shape[:2]
    gaps = bands[0].locality.dilation
    reaches = [_reach(band.locality, mask_spec, length) for band in bands]
    blocks = Blocks(batch, length, _block_size(max(map(sum, reaches)), length // gaps), gaps)
    q_bthk = blocks.stretch(q_bthk)
    queries = blocks.stretch_info(mask_spec.queries)
    keys, values, masks, biases = [], [], [], []

    def add_keys(k_bsgk, v_bsgk, info, mask_b1ts, weight_bs=None):
        keys.append(k_bsgk)
        values.append(v_bsgk)
        masks.append(mask_b1ts)
        if bias is not None:
            scaled_bthk = q_bthk * jnp.asarray(scale, q_bthk.dtype)
            biases.append(bias(scaled_bthk, queries.positions_bt, info.positions_bt))
        elif everywhere is not None and everywhere.weight_bs is not None:
            shape = (len(q_bthk), 1, 1, info.positions_bt.shape[1])
            logs = jnp.zeros(shape) if weight_bs is None else jnp.log(weight_bs).reshape(shape)
            biases.append(logs)

    for band, (before, after) in zip(bands, reaches, strict=True):
        info = blocks.stretch_info(mask_spec.keys, before, after)
        mask_b1ts = MaskSpec(queries, info, mask_spec.causal, band.locality).mask_b1ts()
        stretch = [blocks.stretch(x, before, after) for x in (band.k_bsgk, band.v_bsgk)]
        add_keys(*stretch, info, mask_b1ts)
    if everywhere is not None:
        k_bsgk, v_bsgk, info, sees, weight_bs = everywhere
        k_bsgk, v_bsgk, info, weight_bs = jax.tree.map(
            blocks.for_each, (k_bsgk, v_bsgk, info, weight_bs)
        )
        add_keys(k_bsgk, v_bsgk, info, sees(queries, info), weight_bs)
    y_bthk = dot_attention(
        q_bthk,
        jnp.concatenate(keys, axis=1),
        jnp.concatenate(values, axis=1),
        mask_b1ts=jnp.concatenate(masks, axis=3),
        bias_bhts=jnp.concatenate(biases, axis=3) if biases else None,
        scale=scale,
        cap=cap,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        sinks_h=sinks_h,
    )
    return blocks.join(y_bthk)


def _reach(locality: Locality, mask_spec: MaskSpec, length: int) -> tuple[int, int]:
    """Returns how many columns before and after a query may hold a visible key.

    Dilated columns are sorted to be neighbours, so the dilation divides the reach. The reach ends
    with the row.
    """
    before, after = (
        min(positions, length - 1) // locality.dilation for positions in locality.reach
    )
    only_earlier_keys = mask_spec.causal and mask_spec.keys.prefix_bt is None
    return before, 0 if only_earlier_keys else after


def _block_size(reach: int, length: int) -> int:
    """Larger blocks make larger matmuls, but more of their scores are masked."""
    size = SMALLEST_BLOCK
    while size < min(LARGEST_BLOCK, reach // 2, length):
        size *= 2
    return size


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Cuts rows into blocks of `size` columns, which become rows. The last blocks are padded.

    A block takes every `gaps`-th column.
    """

    rows: int
    length: int
    size: int
    gaps: int = 1

    @property
    def count(self) -> int:
        """The number of blocks for each offset below `gaps`."""
        return -(-self.length // (self.size * self.gaps))

    def stretch(self, x: Array, before: int = 0, after: int = 0) -> Array:
        """Returns the blocks of an array (B, length, ...).

        Each includes at least `before` columns before the block and `after` columns after it.
        """
        padding = self.count * self.size * self.gaps - self.length
        x = _pad(x, 0, padding)
        if self.gaps > 1:
            x = x.reshape(self.rows, -1, self.gaps, *x.shape[2:]).swapaxes(1, 2)
            x = x.reshape(self.rows * self.gaps, -1, *x.shape[3:])
        before, after = -(-before // self.size), -(-after // self.size)
        x = _pad(x, before * self.size, after * self.size)
        x = x.reshape(len(x), -1, self.size, *x.shape[2:])
        pieces = [x[:, n : n + self.count] for n in range(before + 1 + after)]
        x = jnp.concatenate(pieces, axis=2)
        return x.reshape(-1, *x.shape[2:])

    def stretch_info(self, info, before: int = 0, after: int = 0):
        """`stretch` for a `SequenceInfo`, or for an array (B, length) like those in it."""

        def cut(x: Array) -> Array:
            return self.stretch(jnp.broadcast_to(x, (self.rows, self.length)), before, after)

        return jax.tree.map(cut, info)

    def for_each(self, x: Array) -> Array:
        """Repeats the arrays of a row for each of its blocks."""
        return jnp.repeat(x, self.gaps * self.count, axis=0)

    def join(self, y_bthk: Array) -> Array:
        """Joins blocks to rows: the inverse of `stretch`."""
        if self.gaps > 1:
            y_bthk = y_bthk.reshape(self.rows, self.gaps, -1, *y_bthk.shape[2:]).swapaxes(1, 2)
        y_bthk = y_bthk.reshape(self.rows, -1, *y_bthk.shape[-2:])
        return y_bthk[:, : self.length]


def _pad(x: Array, before: int, after: int) -> Array:
    """Pads with columns of zeros; segment 0 is padding, which no query sees."""
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))
