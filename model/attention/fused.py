"""Fused kernels of TPUs and GPUs: faster than plain JAX, but each supports only some masks.

`splash_can` and `cudnn_can` check shapes and options before tracing. `splash_may` and `cudnn_may`
check the data at run time: the kernels assume that columns are positions, or that padding comes
last. On other data they would ignore part of the mask, with a plausible loss and wrong gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from model.attention.dot_attention import SAVED_ATTENTION
from model.masks import PADDING, Locality, MaskSpec, SequenceInfo

LANES = 128  # of a TPU's vector registers; splash's blocks are multiples of it


def splash_can(q_bthk: Array, k_bsgk: Array, v_bsgk: Array, mask_spec: MaskSpec) -> bool:
    """Whether the TPU's splash kernel supports the mask and the arrays' sizes and types."""
    queries, keys = q_bthk.shape[1], k_bsgk.shape[1]
    return (
        queries % LANES == keys % LANES == 0
        and q_bthk.shape[3] == v_bsgk.shape[3]
        and q_bthk.dtype in (jnp.float32, jnp.bfloat16)
        and mask_spec.keys.prefix_bt is None
        and _is_window(mask_spec.locality)
        and (mask_spec.locality is None or mask_spec.keys.global_bt is None)
        and (queries == keys or not _goes_by_position(mask_spec))
    )


def splash_may(mask_spec: MaskSpec) -> Array | bool:
    """Whether the data meets the kernel's assumptions; True if that is known while tracing."""
    if mask_spec.positions_are_columns or not _goes_by_position(mask_spec):
        return True
    return positions_follow_columns(mask_spec)


def splash_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    *,
    scale: float = 1.0,
    cap: float = 0.0,
    interpret: bool = False,
) -> Array:
    """Equals `dot_attention` on TPUs where `splash_can` and `splash_may` hold, (B, T, H, K)."""
    rows, queries, heads, _ = q_bthk.shape
    options = dict(attn_logits_soft_cap=cap or None, interpret=interpret)
    kernel = _splash_kernel(
        (queries, k_bsgk.shape[1]), heads, mask_spec.causal, mask_spec.locality, options
    )
    q_bthk = q_bthk * jnp.asarray(scale, q_bthk.dtype)
    q_bhtk, k_bgsk, v_bgsk = (jnp.moveaxis(x, 2, 1) for x in (q_bthk, k_bsgk, v_bsgk))
    segments = splash.SegmentIds(
        _for_rows(mask_spec.queries, rows), _for_rows(mask_spec.keys, rows)
    )
    y_bthk = jnp.moveaxis(jax.vmap(kernel)(q_bhtk, k_bgsk, v_bgsk, segments), 1, 2)
    return jnp.where(
        _sees_something(mask_spec)[..., None, None], y_bthk, jnp.zeros((), y_bthk.dtype)
    )


def _splash_kernel(
    shape: tuple[int, int], heads: int, causal: bool, locality: Locality | None, options: dict
):
    """Builds the kernel. Python computes the blocks to visit; jax caches them across layers."""
    if locality is not None:
        reach = locality.window - 1
        mask = splash.LocalMask(shape, (reach, 0 if causal else reach), offset=0)
    else:
        mask = splash.CausalMask(shape) if causal else splash.FullMask(shape)
    queries, keys = (_largest_block(length) for length in shape)
    sizes = splash.BlockSizes(
        block_q=queries, block_kv=keys, block_kv_compute=keys,
        block_q_dkv=queries, block_kv_dkv=keys, block_kv_dkv_compute=keys,
        block_q_dq=queries, block_kv_dq=keys,
    )  # fmt: skip
    masks = splash.MultiHeadMask([mask] * heads)
    return splash.make_splash_mha_single_device(
        masks, block_sizes=sizes, residual_checkpoint_name=SAVED_ATTENTION, **options
    )


def _largest_block(length: int) -> int:
    return next(size for size in (512, 256, LANES) if length % size == 0)


def cudnn_can(q_bthk: Array, k_bsgk: Array, v_bsgk: Array, mask_spec: MaskSpec) -> bool:
    """Whether cuDNN's fused attention supports the mask and the arrays' sizes and types.

    Tracing it needs an installed cuDNN. Programs that are lowered for GPUs on another machine use
    blocks in plain JAX.
    """
    head_size = q_bthk.shape[3]
    return (
        jax.default_backend() == "gpu"
        and q_bthk.dtype in (jnp.bfloat16, jnp.float16)
        and head_size == v_bsgk.shape[3]
        and head_size % 8 == 0
        and head_size <= 128
        and mask_spec.keys.prefix_bt is None
        and _is_window(mask_spec.locality)
        and (mask_spec.locality is None or (mask_spec.causal and mask_spec.keys.global_bt is None))
        and (q_bthk.shape[1] == k_bsgk.shape[1] or not _goes_by_position(mask_spec))
    )


def cudnn_may(mask_spec: MaskSpec) -> Array:
    """Whether the data meets cuDNN's assumption: one segment per row, then padding."""
    queries, keys = mask_spec.queries.segments_bt, mask_spec.keys.segments_bt
    fits = _is_one_segment(queries) & _is_one_segment(keys)
    fits &= ((queries[:, :1] == keys[:, :1]) & (keys[:, :1] != PADDING)).all()
    if mask_spec.positions_are_columns or not _goes_by_position(mask_spec):
        return fits
    return fits & positions_follow_columns(mask_spec)


def cudnn_attention(
    q_bthk: Array, k_bsgk: Array, v_bsgk: Array, mask_spec: MaskSpec, *, scale: float = 1.0
) -> Array:
    """Equals `dot_attention` on GPUs where `cudnn_can` and `cudnn_may` hold, (B, T, H, K)."""
    rows = len(q_bthk)
    lengths = (
        (_for_rows(info, rows) != PADDING).sum(axis=1, dtype=jnp.int32)
        for info in (mask_spec.queries, mask_spec.keys)
    )
    y_bthk = jax.nn.dot_product_attention(
        q_bthk, k_bsgk, v_bsgk,
        scale=scale,
        is_causal=mask_spec.causal,
        query_seq_lengths=next(lengths),
        key_value_seq_lengths=next(lengths),
        local_window_size=mask_spec.locality and (mask_spec.locality.window - 1, 0),
        implementation="cudnn",
    )  # fmt: skip
    return jnp.where(
        _sees_something(mask_spec)[..., None, None], y_bthk, jnp.zeros((), y_bthk.dtype)
    )


def positions_follow_columns(mask_spec: MaskSpec) -> Array:
    """Whether queries and keys are the same tokens, with consecutive positions in each segment.

    Then, within a segment, distances in columns equal distances in positions.
    """
    queries, keys = mask_spec.queries, mask_spec.keys
    same = (queries.positions_bt == keys.positions_bt).all()
    same &= (queries.segments_bt == keys.segments_bt).all()
    positions_bt, segments_bt = jnp.broadcast_arrays(keys.positions_bt, keys.segments_bt)
    before = lambda x_bt: jnp.pad(x_bt, ((0, 0), (1, 0)))[:, :-1]  # noqa: E731
    goes_on = segments_bt == before(segments_bt)
    goes_on &= positions_bt == before(positions_bt) + 1
    is_new = segments_bt > before(jax.lax.cummax(segments_bt, axis=1))
    return same & (goes_on | is_new | (segments_bt == PADDING)).all()


def _is_one_segment(segments_bt: Array) -> Array:
    """Whether each row is one segment followed by padding."""
    length_b1 = (segments_bt != PADDING).sum(axis=1, keepdims=True)
    inside_bt = np.arange(segments_bt.shape[1]) < length_b1
    return (segments_bt == jnp.where(inside_bt, segments_bt[:, :1], PADDING)).all()


def _sees_something(mask_spec: MaskSpec) -> Array:
    """Returns whether each query sees a key, (B, T), on data that suits the kernel."""
    queries_bt = mask_spec.queries.segments_bt
    holds_bt = queries_bt != PADDING
    if _goes_by_position(mask_spec):
        return holds_bt  # each sees itself
    # The compiler fuses the comparison into the reduction: no (B, T, S) array in memory.
    return holds_bt & (queries_bt[:, :, None] == mask_spec.keys.segments_bt[:, None]).any(axis=-1)


def _goes_by_position(mask_spec: MaskSpec) -> bool:
    return mask_spec.causal or mask_spec.locality is not None


def _is_window(locality: Locality | None) -> bool:
    return locality is None or (
        locality.window > 0 and locality.dilation == 1 and not locality.chunk
    )


def _for_rows(info: SequenceInfo, rows: int) -> Array:
    return jnp.broadcast_to(info.segments_bt, (rows, info.segments_bt.shape[1]))
