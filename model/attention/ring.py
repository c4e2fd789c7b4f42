"""Ring attention: queries stay on their device, keys and values travel from device to device.

Each device holds a stretch of a row's queries and as long a stretch of its keys. While it attends
to the keys that it has, in the blocks of blockwise.py, it passes them on to its neighbour; once
round, every query has met every key, and no device ever held more than two stretches of them. The
backward pass sends keys round again, and with them their gradients, to which each device adds its
queries' part.
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
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """What this device's queries get of all devices' keys; to be called inside a shard_map.

    Queries, keys and their parts of `mask_spec` are split over the mesh axes `axes`.
    `dropout_key` must be another on each device.
    """
    options = BlockwiseOptions.of(q_bthk, k_bsgk, scale, dropout_rate, block)
    return _attention(options, axes, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(options, axes, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key):
    return _forward(options, axes, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key)[0]


def _forward(options, axes, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key):
    meeting = functools.partial(_meeting, options, q_bthk, mask_spec, bias, dropout_key)
    held = k_bsgk, v_bsgk, mask_spec.keys

    def step(state, number):
        held, softmax = state
        # Sent before they are looked at, so that both can go on at the same time.
        return (_passed_on(held, axes), forward_over_blocks(meeting(held, number), softmax)), None

    softmax = empty_softmax(meeting(held, 0))
    last = jax.lax.axis_size(axes) - 1
    (held, softmax), _ = jax.lax.scan(step, (held, softmax), jnp.arange(last))
    softmax = forward_over_blocks(meeting(held, last), softmax)  # nobody needs these keys any more
    y_bthk, log_sum_ibht = map(attended, softmax.result(q_bthk.shape[1], v_bsgk.dtype))
    return y_bthk, (q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key, y_bthk, log_sum_ibht)


def _backward(options, axes, residuals, dy_bthk):
    *given, y_bthk, log_sum_ibht = residuals
    q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key = given
    meeting = functools.partial(_meeting, options, q_bthk, mask_spec, bias, dropout_key)
    forward = ForwardResult.of(options, y_bthk, log_sum_ibht, dy_bthk)
    held = k_bsgk, v_bsgk, mask_spec.keys

    def with_their_keys(gradients):
        """What belongs to the keys goes where they go."""
        dk_jbgks, dv_jbgks = _passed_on((gradients.dk_jbgks, gradients.dv_jbgks), axes)
        return gradients._replace(dk_jbgks=dk_jbgks, dv_jbgks=dv_jbgks)

    def step(state, number):
        held, gradients = state
        gradients = backward_over_blocks(meeting(held, number), forward, gradients)
        return (_passed_on(held, axes), with_their_keys(gradients)), None

    gradients = zero_gradients(meeting(held, 0))
    last = jax.lax.axis_size(axes) - 1
    (held, gradients), _ = jax.lax.scan(step, (held, gradients), jnp.arange(last))
    gradients = with_their_keys(
        backward_over_blocks(meeting(held, last), forward, gradients)
    )  # and are at home
    return *gradients.to(options, *given), None


_attention.defvjp(_forward, _backward)


def _meeting(options, q_bthk, mask_spec, bias, dropout_key, held, step) -> BlockSchedule:
    """This device's queries and the keys that it holds at a step, as work to be done.

    Blocks in which no query sees a key are left out, and often that is all of a step's.
    """
    k_bsgk, v_bsgk, keys = held
    if dropout_key is not None:
        dropout_key = jax.random.fold_in(dropout_key, step)
    mask_spec = MaskSpec(mask_spec.queries, keys, mask_spec.causal, mask_spec.locality)
    return BlockSchedule.of(options, q_bthk, k_bsgk, v_bsgk, mask_spec, bias, dropout_key)


def _passed_on(held: tuple[Array | SequenceInfo, ...], axes: tuple[str, ...]) -> tuple:
    """What the neighbour before this device held."""
    count = jax.lax.axis_size(axes)
    ring = [(device, (device + 1) % count) for device in range(count)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axes, ring), held)
