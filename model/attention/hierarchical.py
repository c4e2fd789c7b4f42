"""Attention to the keys of the query's own chunk and to the mean key and value of other chunks.

The mean has the weight of all tokens of its chunk. A query's score for a mean of keys is the mean
of its scores. So this is plain attention in which the scores of another chunk are replaced by their
mean; `mean_scores` does this when decoding from a cache.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.banded import Band, Blocks, Everywhere, banded_attention
from model.attention.dot_attention import attended
from model.attention.interface import NO_SINKS, AttentionInputs, AttentionKind
from model.masks import PADDING, Locality, MaskSpec, SequenceInfo, count_visible

if TYPE_CHECKING:
    from model.config import TransformerConfig

NO_POSITION = "the mean of a chunk has no position"


class Hierarchical(AttentionKind):
    name = "hierarchical"
    description = "a query's own chunk in full, every other chunk by its mean"
    refused: ClassVar = {
        "bias": NO_POSITION,
        "relative": NO_POSITION,
        "prefix": "a chunk's mean would include tokens that the query may not see",
        "sinks": NO_SINKS,
    }
    keys = ("attention_chunk",)

    def attend(self, inputs: AttentionInputs) -> Array:
        chunk = inputs.config.attention_chunk
        return attended(
            hierarchical_attention(
                *inputs.qkv, inputs.mask_spec, chunk=chunk, **inputs.softmax_options
            )
        )

    def change_scores(self, inputs: AttentionInputs, mask_b1ts: Array) -> Callable[[Array], Array]:
        return functools.partial(
            mean_scores,
            mask_b1ts=mask_b1ts,
            mask_spec=inputs.context.mask_spec,
            chunk=inputs.config.attention_chunk,
        )

    def pairs(self, config: "TransformerConfig", length: int, *, causal: bool) -> int:
        chunk = config.attention_chunk
        full, rest = divmod(length, chunk)
        if causal:  # each query sees the means of the chunks before its own
            means = chunk * full * (full - 1) // 2 + rest * full
        else:
            means = length * (full + (rest > 0) - 1)
        return count_visible(Locality(chunk=chunk), length, causal) + means


def hierarchical_attention(
    q_bthk: Array, k_bsgk: Array, v_bsgk: Array, mask_spec: MaskSpec, *, chunk: int, **options
) -> Array:
    """`dot_attention` with chunk means. Causal queries see the means of earlier chunks only."""

    def sees(queries: SequenceInfo, means: SequenceInfo) -> Array:
        own_bt1 = queries.positions_bt[:, :, None] // chunk
        theirs_b1s = means.positions_bt[:, None] // chunk
        mask_bts = theirs_b1s < own_bt1 if mask_spec.causal else theirs_b1s != own_bt1
        mask_bts &= queries.segments_bt[:, :, None] == means.segments_bt[:, None]
        return (mask_bts & (means.segments_bt[:, None] != PADDING))[:, None]

    own = Band(k_bsgk, v_bsgk, Locality(chunk=chunk))
    k_bjgk, v_bjgk, info, count_bj = chunk_means(k_bsgk, v_bsgk, mask_spec, chunk)
    everywhere = Everywhere(k_bjgk, v_bjgk, info, sees, jnp.maximum(count_bj, 1))
    return banded_attention(q_bthk, [own], mask_spec, everywhere=everywhere, **options)


def chunk_means(
    k_bsgk: Array, v_bsgk: Array, mask_spec: MaskSpec, chunk: int
) -> tuple[Array, Array, SequenceInfo, Array]:
    """Returns mean keys and values (B, J, G, K), their starts and segments, and token counts.

    The first chunk of a segment starts with it, so in packed rows chunks can end in any column.
    Among any `chunk` columns at most one full chunk ends, and at most one unfinished chunk at the
    end of a longer segment. This bounds J. Unused means are in the segment of padding.
    """
    size = min(chunk, k_bsgk.shape[1])  # a row may be shorter than a chunk
    blocks = Blocks(len(k_bsgk), k_bsgk.shape[1], size)
    # A block and the block before it hold all of a chunk that ends in the block.
    info = blocks.stretch_info(mask_spec.keys, before=size)
    following_bs = jnp.pad(mask_spec.keys.segments_bt[:, 1:], ((0, 0), (0, 1)))
    following_bs = blocks.stretch_info(following_bs, before=size)
    positions_bs, segments_bs = info.positions_bt, info.segments_bt

    ends_here_bs = (segments_bs != PADDING) & (jnp.arange(positions_bs.shape[1]) >= size)
    is_full_bs = positions_bs % chunk == chunk - 1
    ends = [ends_here_bs & is_full_bs]
    if not mask_spec.causal:  # causal: no query comes after an unfinished chunk
        is_last_bs = (following_bs != segments_bs) & (positions_bs >= chunk)
        ends.append(ends_here_bs & is_last_bs & ~is_full_bs)

    stretches = [blocks.stretch(x, before=size) for x in (k_bsgk, v_bsgk)]
    means = []
    for end_bs in ends:
        segment_b1 = jnp.where(end_bs, segments_bs, PADDING).max(axis=1, keepdims=True)
        start_b1 = jnp.where(end_bs, positions_bs // chunk, 0).max(axis=1, keepdims=True) * chunk
        belongs_bs = (segments_bs == segment_b1) & (positions_bs // chunk * chunk == start_b1)
        belongs_bs &= segment_b1 != PADDING
        belongs_bs = belongs_bs.astype(jnp.float32)
        count_b1 = belongs_bs.sum(axis=1, keepdims=True)
        share_bs = belongs_bs / jnp.maximum(count_b1, 1)
        k_bgk, v_bgk = (
            jnp.einsum("bs,bsgk->bgk", share_bs, x.astype(jnp.float32)).astype(x.dtype)
            for x in stretches
        )
        means.append((k_bgk, v_bgk, start_b1, segment_b1, count_b1))

    def of_rows(x: Array) -> Array:
        trailing = x.shape[1:] if x.ndim > 2 else ()
        return x.reshape(len(k_bsgk), -1, *trailing)

    k, v, starts, segments, counts = (
        jnp.concatenate([of_rows(x) for x in parts], axis=1) for parts in zip(*means, strict=True)
    )
    return k, v, SequenceInfo(starts, segments), counts


def mean_scores(scores_bhts: Array, mask_b1ts: Array, mask_spec: MaskSpec, chunk: int) -> Array:
    """Replaces the scores (B, H, T, S) of other chunks by their mean over the chunk.

    A cache holds one text, so a chunk's number identifies it.
    """
    slots = scores_bhts.shape[3]
    # The slots hold at most slots // chunk + 2 chunks, so their numbers stay distinct.
    number_bs = mask_spec.keys.positions_bt // chunk
    belongs_bsj = jax.nn.one_hot(number_bs % (slots // chunk + 2), slots // chunk + 2)
    visible_bhts = jnp.where(mask_b1ts, scores_bhts, 0)
    sum_bhtj = jnp.einsum("bhts,bsj->bhtj", visible_bhts, belongs_bsj)
    count_b1tj = jnp.einsum("bhts,bsj->bhtj", mask_b1ts.astype(jnp.float32), belongs_bsj)
    mean_bhtj = sum_bhtj / jnp.maximum(count_b1tj, 1)
    mean_bhts = jnp.einsum("bhtj,bsj->bhts", mean_bhtj, belongs_bsj)
    is_own_bts = number_bs[:, None] == mask_spec.queries.positions_bt[:, :, None] // chunk
    return jnp.where(is_own_bts[:, None], scores_bhts, mean_bhts)
