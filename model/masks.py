"""Attention masks: one rule for training, packing, padding, prefixes and cached decoding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PADDING = 0  # the segment id of padding


def attention_mask(
    query_positions_bt: Array,
    key_positions_bs: Array,
    query_segments_bt: Array,
    key_segments_bs: Array,
    *,
    causal: bool,
    key_prefix_bs: Array | None = None,
) -> Array:
    """Returns the mask (B, 1, T, S): True where a query may attend to a key.

    A query sees the keys of its own segment. Packed examples do not see each other, and no query
    sees padding. With `causal`, a query does not see later positions. Exception: every query of a
    segment sees its keys that `key_prefix_bs` marks (prefix language models). Cross-attention is
    the same rule without `causal`; the keys' segments are those of the source.
    """
    query_segments_bt1, key_segments_b1s = query_segments_bt[:, :, None], key_segments_bs[:, None]
    mask_bts = (query_segments_bt1 == key_segments_b1s) & (key_segments_b1s != PADDING)
    if causal:
        visible_bts = key_positions_bs[:, None] <= query_positions_bt[:, :, None]
        if key_prefix_bs is not None:
            visible_bts |= key_prefix_bs[:, None].astype(bool)
        mask_bts &= visible_bts
    return mask_bts[:, None]


@dataclasses.dataclass(frozen=True)
class Locality:
    """Limits a query to local keys, by position.

    With `window`, keys less than `window` positions away are local; with a `dilation` of n, every
    n-th key less than n * `window` positions away. With `chunk`, positions are divided into chunks
    of this size. Local keys are those of the query's own chunk, the `before` positions before the
    chunk and the `after` positions after it. `own=False` excludes the query's own chunk.
    """

    window: int = 0
    dilation: int = 1
    chunk: int = 0
    before: int = 0
    after: int = 0
    own: bool = True

    def __call__(self, query_positions: Array, key_positions: Array) -> Array:
        """Returns whether the key is local to the query; the two arrays broadcast."""
        if self.chunk:
            start = query_positions // self.chunk * self.chunk
            ends = start + self.chunk + self.after
            is_local = (start - self.before <= key_positions) & (key_positions < ends)
            if not self.own:
                is_local &= key_positions // self.chunk * self.chunk != start
            return is_local
        away = jnp.abs(key_positions - query_positions)
        return (away // self.dilation < self.window) & (away % self.dilation == 0)

    @property
    def reach(self) -> tuple[int, int]:
        """The largest distance of a local key, backward and forward."""
        if self.chunk:
            return self.chunk - 1 + self.before, self.chunk - 1 + self.after
        return ((self.window - 1) * self.dilation,) * 2


@dataclasses.dataclass(frozen=True)
class SequenceInfo:
    """Positions and segment ids of a sequence. The batch axis may be 1 (broadcast)."""

    positions_bt: Array
    segments_bt: Array
    prefix_bt: Array | None = None  # keys that every query of their segment sees
    # Global tokens: locality does not limit them, neither as queries nor as keys. The other rules
    # still apply.
    global_bt: Array | None = None


@dataclasses.dataclass(frozen=True)
class MaskSpec:
    """An attention mask in compact form, not materialised for every pair.

    A segment is a run of columns in which positions grow by one; padding may be on either side.
    Attention kinds with a locality rely on that.
    """

    queries: SequenceInfo
    keys: SequenceInfo
    causal: bool
    locality: Locality | None = None  # None: distance does not limit
    # Whether this is known while tracing: queries and keys are the same tokens, and their positions
    # are their columns. Then kernels that compare columns need not look at the positions.
    positions_are_columns: bool = False

    def mask_b1ts(self) -> Array:
        """Returns the explicit mask (B, 1, T, S): True where a query may attend to a key."""
        queries, keys = self.queries, self.keys
        mask_b1ts = attention_mask(
            queries.positions_bt, keys.positions_bt, queries.segments_bt, keys.segments_bt,
            causal=self.causal, key_prefix_bs=keys.prefix_bt,
        )  # fmt: skip
        if self.locality is None:
            return mask_b1ts
        is_local_bts = self.locality(queries.positions_bt[:, :, None], keys.positions_bt[:, None])
        if keys.global_bt is not None:
            is_local_bts |= queries.global_bt[:, :, None] | keys.global_bt[:, None]
        return mask_b1ts & is_local_bts[:, None]


jax.tree_util.register_dataclass(
    SequenceInfo, ["positions_bt", "segments_bt", "prefix_bt", "global_bt"], meta_fields=[]
)
jax.tree_util.register_dataclass(
    MaskSpec, ["queries", "keys"], ["causal", "locality", "positions_are_columns"]
)


@functools.cache
def count_visible(locality: Locality | None, length: int, causal: bool) -> int:
    """Counts the visible query-key pairs of a row that is one text."""
    queries = np.arange(length)
    first, last = np.zeros(length, int), np.full(length, length - 1)
    dilation = 1
    if locality is not None and locality.chunk:
        start = queries // locality.chunk * locality.chunk
        first, last = start - locality.before, start + locality.chunk - 1 + locality.after
    elif locality is not None:
        dilation = locality.dilation
        first, last = queries - locality.reach[0], queries + locality.reach[1]
    last = queries if causal else np.minimum(last, length - 1)
    first = np.maximum(first, 0)
    # Dilation skips keys on both sides of the query.
    return int(((queries - first) // dilation + (last - queries) // dilation + 1).sum())


def up_to_first(marked_bt: Array, positions_bt: Array) -> Array:
    """Returns True up to and including the first marked token of each segment, (B, T)."""
    marked_bt = marked_bt.astype(jnp.int32)
    marked_before_bt = jnp.cumsum(marked_bt, axis=1) - marked_bt
    start_bt = jnp.arange(marked_bt.shape[1]) - positions_bt  # the segment's first column
    start_bt = jnp.broadcast_to(jnp.maximum(start_bt, 0), marked_bt.shape)
    return marked_before_bt == jnp.take_along_axis(marked_before_bt, start_bt, axis=1)


def positions_or_default(positions_bt: Array | None, like_bt: Array) -> Array:
    """Returns the given positions, or 0, 1, 2, ... for every row, (1, T)."""
    if positions_bt is not None:
        return positions_bt
    return jnp.arange(like_bt.shape[1], dtype=jnp.int32)[None]


def segments_or_default(segments_bt: Array | None, like_bt: Array) -> Array:
    """Returns the given segments, or one segment for the whole row, (1, T)."""
    if segments_bt is not None:
        return segments_bt
    return jnp.ones((1, like_bt.shape[1]), jnp.int32)
