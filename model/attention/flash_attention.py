"""Exact attention in linear memory, with the best kernel of the platform."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from model.attention.blockwise import blockwise_attention
from model.attention.fused import (
    cudnn_attention,
    cudnn_can,
    cudnn_may,
    splash_attention,
    splash_can,
    splash_may,
)
from model.attention.ring import ring_attention
from model.masks import MaskSpec, SequenceInfo
from model.positions import ScoreBias
from model.sharding import devices_along, dividing_axes, is_sharded, mesh_platform


def flash_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    *,
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    sinks_h: Array | None = None,
) -> Array:
    """Equals `dot_attention` with `mask_spec.mask_b1ts()` and the explicit bias, (B, T, H, K).

    On a mesh, each device computes its own rows, heads and queries. If the length is sharded, keys
    travel from device to device (ring.py).
    """
    if bias is not None and bias.scheme == "transformer_xl":
        raise ValueError("flash_attention cannot compute the scores of transformer_xl")
    options = dict(scale=scale, cap=cap, dropout_rate=dropout_rate)
    attend = _attend_on_a_mesh if is_sharded() else _attend
    return attend(q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h, **options)


def _attend(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    bias: ScoreBias | None,
    dropout_key: Array | None,
    sinks_h: Array | None,
    *,
    scale: float,
    cap: float,
    dropout_rate: float,
) -> Array:
    """Uses the platform's kernel if it supports the options and the data.

    The platform is the one that the program is lowered for, not the one that traces it.
    """

    def in_blocks(q_bthk, k_bsgk, v_bsgk, mask_spec):
        options = dict(scale=scale, cap=cap, dropout_rate=dropout_rate, dropout_key=dropout_key)
        options |= dict(bias=bias, sinks_h=sinks_h)
        return blockwise_attention(q_bthk, k_bsgk, v_bsgk, mask_spec, **options)

    def fused(may, attention, **options):
        def attend(q_bthk, k_bsgk, v_bsgk, mask_spec):
            given = q_bthk, k_bsgk, v_bsgk, mask_spec
            kernel = functools.partial(attention, scale=scale, **options)
            if (suits := may(mask_spec)) is True:
                return kernel(*given)
            # A cond saves the residuals of both branches, so the rare branch saves none and
            # recomputes its forward pass.
            return jax.lax.cond(suits, kernel, jax.checkpoint(in_blocks), *given)

        return attend

    given, kernels = (q_bthk, k_bsgk, v_bsgk, mask_spec), {}
    if bias is None and sinks_h is None and not dropout_rate:
        if splash_can(*given):
            kernels["tpu"] = fused(splash_may, splash_attention, cap=cap)
        if not cap and cudnn_can(*given):  # cuDNN's kernel has no soft cap
            kernels["cuda"] = fused(cudnn_may, cudnn_attention)
    if not kernels:
        return in_blocks(*given)
    if mesh_platform() == "tpu":
        # Where the platform is known, only its code is traced: otherwise, the backward pass would
        # keep the inputs of every platform's code.
        return kernels.get("tpu", in_blocks)(*given)
    return jax.lax.platform_dependent(*given, **kernels, default=in_blocks)


def _attend_on_a_mesh(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    bias: ScoreBias | None,
    dropout_key: Array | None,
    sinks_h: Array | None,
    **options,
) -> Array:
    """`_attend` on each device's shard; the compiler cannot partition the kernels itself."""
    rows, queries, heads, _ = q_bthk.shape
    batch, by_head = dividing_axes("batch", rows), dividing_axes("heads", heads)
    length, by_key = dividing_axes("length", queries), dividing_axes("length", k_bsgk.shape[1])
    if not length:  # each device has all queries, so it needs all keys
        by_key = ()
    if devices_along(by_head) > 1 and k_bsgk.shape[2] % devices_along(by_head):
        # Query heads of one key/value head are on several devices; each gets a copy.
        copies = heads // k_bsgk.shape[2]
        k_bsgk, v_bsgk = (jnp.repeat(x, copies, axis=2) for x in (k_bsgk, v_bsgk))

    def specs_of(info: SequenceInfo, columns: tuple[str, ...]) -> SequenceInfo:
        row_of = lambda x: PartitionSpec(batch if len(x) == rows else None, columns)  # noqa: E731
        return jax.tree.map(row_of, info)

    infos = specs_of(mask_spec.queries, length), specs_of(mask_spec.keys, by_key)
    in_specs = (
        PartitionSpec(batch, length, by_head),
        PartitionSpec(batch, by_key, by_head),
        PartitionSpec(batch, by_key, by_head),
        dataclasses.replace(mask_spec, queries=infos[0], keys=infos[1]),
        # Heads are the last axis of alibi's slopes (H) and of t5's table (buckets, H).
        jax.tree.map(lambda x: PartitionSpec(*[None] * (x.ndim - 1), by_head), bias),
        PartitionSpec(),
        PartitionSpec(by_head),
    )

    def part(q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h):
        if dropout_key is not None:
            for axis in (*batch, *length, *by_head):
                dropout_key = jax.random.fold_in(dropout_key, jax.lax.axis_index(axis))
        if devices_along(by_key) == 1:
            given = q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h
            return _attend(*given, **options)
        # Plain JAX on every platform: the platforms' kernels have no backward pass for a part of
        # a query's keys.
        given = dict(bias=bias, dropout_key=dropout_key, sinks_h=sinks_h, axes=by_key)
        return ring_attention(q_bthk, k_bsgk, v_bsgk, mask_spec, **given, **options)

    # The platforms' kernels do not declare the mesh axes over which their results vary.
    attend = jax.shard_map(part, in_specs=in_specs, out_specs=in_specs[0], check_vma=False)
    return attend(q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h)
