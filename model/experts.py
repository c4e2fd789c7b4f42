"""A feed-forward layer of several experts, of which each token uses a few.

Without a capacity, tokens are sorted by expert, and each expert multiplies its own rows: nothing is
dropped. With one, each expert has a buffer of fixed size for each row of the batch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from model.config import TransformerConfig
from model.layers import GATED, SAVED_MATMULS, FeedForward, activate, gated
from model.masks import PADDING
from model.mixed_precision import grouped_matmul
from model.routing import ROUTER, Routing, capacity_of, route
from model.sharding import devices_along, dividing_axes, is_sharded


class Weights(NamedTuple):
    """A kernel (E, inputs, outputs) and a bias (E, outputs) or None."""

    kernel: Array
    bias: Array | None


class ExpertDense(nn.Module):
    """The parameters of one dense layer of all experts."""

    config: TransformerConfig
    inputs: int
    outputs: int
    axes: tuple[str, str, str]

    @nn.compact
    def __call__(self) -> Weights:
        config = self.config
        init = nn.initializers.variance_scaling(
            1.0, "fan_in", "truncated_normal", in_axis=1, out_axis=2, batch_axis=0
        )
        if config.init_std:
            init = nn.initializers.normal(config.init_std)
        shape = config.experts, self.inputs, self.outputs

        def param(name: str, init, shape, axes) -> Array:
            init = nn.with_logical_partitioning(init, axes)
            return self.param(name, init, shape, jnp.dtype(config.param_dtype))

        kernel = param("kernel", init, shape, self.axes)
        if not config.bias:
            return Weights(kernel, None)
        axes = self.axes[0], self.axes[2]
        return Weights(kernel, param("bias", nn.initializers.zeros, shape[::2], axes))


class Experts(nn.Module):
    """All experts; gives each token the weighted sum of the outputs of its own."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_btd: Array, routing: Routing, capacity: int) -> Array:
        config = self.config
        sizes = config.width, config.feed_forward
        inner = (*sizes, ("expert", "width", "expert_feed_forward"))
        outer = (*sizes[::-1], ("expert", "expert_feed_forward", "width"))
        names = ("gate", "in") if config.activation in GATED else ("in",)
        weights = {name: ExpertDense(config, *inner, name=name)() for name in names}
        weights["out"] = ExpertDense(config, *outer, name="out")()
        x_btd = x_btd.astype(config.dtype)
        apply = functools.partial(_apply, config, capacity)
        if not is_sharded():
            return apply(x_btd, routing, weights)
        batch, length = (
            dividing_axes(*each) for each in zip(("batch", "length"), x_btd.shape, strict=False)
        )
        if capacity:  # a buffer holds tokens of the whole row
            length = ()
        own = dividing_axes("expert", config.experts)

        def part(x_btd: Array, routing: Routing, weights: dict[str, Weights]) -> Array:
            here = config.experts // devices_along(own)
            experts_bty = routing.experts_bty
            if own:
                experts_bty = experts_bty - jax.lax.axis_index(own) * here
            is_here_bty = (experts_bty >= 0) & (experts_bty < here)
            experts_bty = jnp.where(is_here_bty, experts_bty, here)
            y_btd = apply(x_btd, routing._replace(experts_bty=experts_bty), weights)
            return jax.lax.psum(y_btd, own) if own else y_btd

        rows, by_expert = PartitionSpec(batch, length), PartitionSpec(own)
        apply_parts = jax.shard_map(
            part, in_specs=(rows, rows, by_expert), out_specs=rows, check_vma=False
        )
        return apply_parts(x_btd, routing, weights)


class ExpertFeedForward(nn.Module):
    """A router, its experts, and experts that all tokens share."""

    config: TransformerConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x_btd: Array, segments_bt: Array, decoding: bool = False) -> Array:
        """Decoding drops nothing: it sees one token of a row at a time."""
        config = self.config
        real_bt = jnp.broadcast_to(segments_bt != PADDING, x_btd.shape[:2])
        capacity = 0 if decoding else capacity_of(config, x_btd.shape[1])
        logits_bte = Router(config, name="router")(x_btd)
        routing, totals = route(config, logits_bte, real_bt, capacity)
        if self.is_mutable_collection(ROUTER) and not self.is_initializing():
            for name, value in totals.items():
                self.put_variable(ROUTER, name, value)
        y_btd = Experts(config, name="experts")(x_btd, routing, capacity)
        if config.shared_experts:
            size = config.shared_experts * config.feed_forward
            shared = dataclasses.replace(config, feed_forward=size)
            y_btd += FeedForward(shared, self.deterministic, name="shared")(x_btd)
        return y_btd


class Router(nn.Module):
    """The logits of all experts (B, T, E), in float32."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_btd: Array) -> Array:
        config = self.config
        std = config.init_std or config.width**-0.5
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(nn.initializers.normal(std), ("width", "router")),
            (config.width, config.experts),
            jnp.dtype(config.param_dtype),
        )
        x_btd, kernel = x_btd.astype(jnp.float32), kernel.astype(jnp.float32)
        # On TPUs, the default would round both to bfloat16.
        logits_bte = jnp.matmul(x_btd, kernel, precision=jax.lax.Precision.HIGHEST)
        if config.router_bias:
            bias = self.param(
                "bias",
                nn.with_logical_partitioning(nn.initializers.zeros, ("router",)),
                (config.experts,),
                jnp.dtype(config.param_dtype),
            )
            logits_bte += bias.astype(jnp.float32)
        return logits_bte


def _apply(
    config: TransformerConfig,
    capacity: int,
    x_btd: Array,
    routing: Routing,
    weights: dict[str, Weights],
) -> Array:
    """Returns the weighted sum of the outputs of the experts that are here, (B, T, D)."""
    run = _buffered if capacity else _sorted
    y_btyd = run(config, capacity, x_btd, routing, weights)
    y_btyd = y_btyd.astype(jnp.float32) * routing.weights_bty[..., None]
    return y_btyd.sum(axis=2).astype(x_btd.dtype)


def _sorted(config, capacity, x_btd, routing, weights) -> Array:
    """The outputs of each token's experts, (B, T, Y, D), for any number of tokens an expert."""
    del capacity
    # These arrays have one row for each choice, B * T * Y of them.
    experts = routing.experts_bty.reshape(-1)
    per_token, here = routing.experts_bty.shape[2], len(weights["out"].kernel)
    order = jnp.argsort(experts, stable=True)  # those of no expert come last
    experts = experts[order]
    is_used = (experts < here)[:, None]
    sizes_e = jnp.bincount(experts, length=here).astype(jnp.int32)
    zero = jnp.zeros((), x_btd.dtype)
    # A grouped matmul leaves rows of no group undefined, forward and backward.
    x = jnp.where(is_used, x_btd.reshape(-1, x_btd.shape[2])[order // per_token], zero)

    def dense(x: Array, weights: Weights) -> Array:
        y = checkpoint_name(grouped_matmul(x, weights.kernel, sizes_e), SAVED_MATMULS)
        if weights.bias is None:
            return y
        bias = weights.bias.at[experts].get(mode="fill", fill_value=0)
        return y + bias.astype(y.dtype)

    y = jnp.where(is_used, _mlp(config, x, weights, dense), zero)
    places = jnp.argsort(order)
    return y[places].reshape(*routing.experts_bty.shape, -1)


def _buffered(config, capacity, x_btd, routing, weights) -> Array:
    """The outputs of each token's experts, (B, T, Y, D), with one buffer an expert and row."""
    batch, _, width = x_btd.shape
    here = len(weights["out"].kernel)
    is_used_bty = routing.experts_bty < here
    places_bty = routing.experts_bty * capacity + routing.slots_bty
    places_bty = jnp.where(is_used_bty, places_bty, here * capacity)  # out of the buffers
    rows_b11 = jnp.arange(batch)[:, None, None]
    buffers = jnp.zeros((batch, here * capacity, width), x_btd.dtype)
    buffers = buffers.at[rows_b11, places_bty].add(x_btd[:, :, None], mode="drop")
    by_expert = buffers.reshape(batch, here, capacity, width).swapaxes(0, 1)

    def dense(x: Array, weights: Weights) -> Array:  # (E, B * capacity, inputs)
        y = checkpoint_name(grouped_matmul(x, weights.kernel, None), SAVED_MATMULS)
        return y if weights.bias is None else y + weights.bias[:, None].astype(y.dtype)

    y = _mlp(config, by_expert.reshape(here, -1, width), weights, dense)
    buffers = y.reshape(here, batch, capacity, -1).swapaxes(0, 1).reshape(batch, -1, width)
    return buffers.at[rows_b11, places_bty].get(mode="fill", fill_value=0)


def _mlp(
    config: TransformerConfig,
    x: Array,
    weights: dict[str, Weights],
    dense: Callable[[Array, Weights], Array],
) -> Array:
    hidden = dense(x, weights["in"])
    if config.activation in GATED:
        hidden = gated(config, dense(x, weights["gate"]), hidden)
    else:
        hidden = activate(config.activation, hidden)
    return dense(hidden, weights["out"])
