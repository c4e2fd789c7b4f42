"""Ring attention: queries stay on their device, keys and values travel from device to device.

Each device holds one shard of a row's queries and of its keys. While it attends to its keys, with
the blocks of blockwise.py, it sends them to its neighbour. After one round, every query has seen
every key, and no device has held more than two shards of keys. The backward pass sends keys and
their gradients around again; each device adds the part of its queries.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from model.attention.blockwise import (
    BLOCK,
    BlockSchedule,
    BlockwiseOptions,
    ForwardResult,
    backward_over_blocks,
    empty_softmax,
    forward_over_blocks,
    zero_gradients,
)
from model.attention.dot_attention import attended
from model.masks import MaskSpec, SequenceInfo
from model.positions import ScoreBias


def ring_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    mask_spec: MaskSpec,
    *,
    axes: tuple[str, ...],
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    sinks_h: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """Attends from this device's queries to all devices' keys, (B, T, H, K). Needs a shard_map.

    Queries, keys and their parts of `mask_spec` are sharded over the mesh axes `axes`.
    `dropout_key` must differ between devices.
    """
    options = BlockwiseOptions.of(q_bthk, k_bsgk, scale, cap, dropout_rate, block)
    given = q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h
    return _attention(options, axes, *given)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(options, axes, *given):
    return _forward(options, axes, *given)[0]


def _forward(options, axes, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, sinks_h):
    schedule = functools.partial(_schedule, options, q_bthk, mask_spec, bias, dropout_key)
    held = k_bsgk, v_bsgk, mask_spec.keys

    def step(state, number):
        held, softmax = state
        # Sent before the computation, so that both overlap.
        return (_send(held, axes), forward_over_blocks(schedule(held, number), softmax)), None

    softmax = empty_softmax(schedule(held, 0), sinks_h)
    last = jax.lax.axis_size(axes) - 1
    (held, softmax), _ = jax.lax.scan(step, (held, softmax), jnp.arange(last))
    softmax = forward_over_blocks(schedule(held, last), softmax)  # keys are not sent on
    y_bthk, log_sum_ibht = map(attended, softmax.result(q_bthk.shape[1], v_bsgk.dtype))
    given = q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key
    return y_bthk, (*given, sinks_h, y_bthk, log_sum_ibht)


def _backward(options, axes, residuals, dy_bthk):
    *given, sinks_h, y_bthk, log_sum_ibht = residuals
    q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key = given
    schedule = functools.partial(_schedule, options, q_bthk, mask_spec, bias, dropout_key)
    forward = ForwardResult.of(options, y_bthk, log_sum_ibht, dy_bthk)
    held = k_bsgk, v_bsgk, mask_spec.keys

    def send_gradients(gradients):
        """Sends the gradients of keys and values along with them."""
        dk_jbgks, dv_jbgks = _send((gradients.dk_jbgks, gradients.dv_jbgks), axes)
        return gradients._replace(dk_jbgks=dk_jbgks, dv_jbgks=dv_jbgks)

    def step(state, number):
        held, gradients = state
        gradients = backward_over_blocks(schedule(held, number), forward, gradients)
        return (_send(held, axes), send_gradients(gradients)), None

    gradients = zero_gradients(schedule(held, 0))
    last = jax.lax.axis_size(axes) - 1
    (held, gradients), _ = jax.lax.scan(step, (held, gradients), jnp.arange(last))
    # The last step returns the gradients to the device that owns the keys.
    gradients = send_gradients(backward_over_blocks(schedule(held, last), forward, gradients))
    return *gradients.to(options, *given), None, forward.gradient_of_sinks(sinks_h)


_attention.defvjp(_forward, _backward)


def _schedule(options, q_bthk, mask_spec, bias, dropout_key, held, step) -> BlockSchedule:
    """Returns the schedule of this device's queries and the keys that it holds at a step.

    Blocks without visible keys are skipped; often these are all blocks of a step.
    """
    k_bsgk, v_bsgk, keys = held
    if dropout_key is not None:
        dropout_key = jax.random.fold_in(dropout_key, step)
    mask_spec = MaskSpec(mask_spec.queries, keys, mask_spec.causal, mask_spec.locality)
    return BlockSchedule.of(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key)


def _send(held: tuple[Array | SequenceInfo, ...], axes: tuple[str, ...]) -> tuple:
    """Sends `held` to the next device; returns what the previous one sent."""
    count = jax.lax.axis_size(axes)
    ring = [(device, (device + 1) % count) for device in range(count)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axes, ring), held)
