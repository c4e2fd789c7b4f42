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

from model.kernels.blockwise import (
    BLOCK,
    Options,
    Outcome,
    Work,
    look,
    look_back,
    no_slopes,
    nothing_seen,
)
from model.kernels.dot import attended
from model.masks import Side, Sight
from model.positions import ScoreBias


def ring_attention(
    q_bthk: Array,
    k_bsgk: Array,
    v_bsgk: Array,
    sight: Sight,
    *,
    axes: tuple[str, ...],
    bias: ScoreBias | None = None,
    scale: float = 1.0,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """What this device's queries get of all devices' keys; to be called inside a shard_map.

    Over the mesh axes `axes` queries and keys are split, and their sides of `sight` as they are.
    `dropout_key` must be another on each device.
    """
    options = Options.of(q_bthk, k_bsgk, scale, dropout_rate, block)
    return _attention(options, axes, q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(options, axes, q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key):
    return _forward(options, axes, q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key)[0]


def _forward(options, axes, q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key):
    meeting = functools.partial(_meeting, options, q_bthk, sight, bias, dropout_key)
    held = k_bsgk, v_bsgk, sight.keys

    def step(state, number):
        held, seen = state
        # Sent before they are looked at, so that both can go on at the same time.
        return (_passed_on(held, axes), look(meeting(held, number), seen)), None

    seen = nothing_seen(meeting(held, 0))
    last = jax.lax.axis_size(axes) - 1
    (held, seen), _ = jax.lax.scan(step, (held, seen), jnp.arange(last))
    seen = look(meeting(held, last), seen)  # nobody needs these keys any more
    y_bthk, log_sum_nbht = map(attended, seen.result(q_bthk.shape[1], v_bsgk.dtype))
    return y_bthk, (q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key, y_bthk, log_sum_nbht)


def _backward(options, axes, residuals, dy_bthk):
    *given, y_bthk, log_sum_nbht = residuals
    q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key = given
    meeting = functools.partial(_meeting, options, q_bthk, sight, bias, dropout_key)
    outcome = Outcome.of(options, y_bthk, log_sum_nbht, dy_bthk)
    held = k_bsgk, v_bsgk, sight.keys

    def with_their_keys(slopes):
        """What belongs to the keys goes where they go."""
        dk_nbgks, dv_nbgks = _passed_on((slopes.dk_nbgks, slopes.dv_nbgks), axes)
        return slopes._replace(dk_nbgks=dk_nbgks, dv_nbgks=dv_nbgks)

    def step(state, number):
        held, slopes = state
        slopes = look_back(meeting(held, number), outcome, slopes)
        return (_passed_on(held, axes), with_their_keys(slopes)), None

    slopes = no_slopes(meeting(held, 0))
    last = jax.lax.axis_size(axes) - 1
    (held, slopes), _ = jax.lax.scan(step, (held, slopes), jnp.arange(last))
    slopes = with_their_keys(look_back(meeting(held, last), outcome, slopes))  # and are at home
    return *slopes.to(options, *given), None


_attention.defvjp(_forward, _backward)


def _meeting(options, q_bthk, sight, bias, dropout_key, held, step) -> Work:
    """This device's queries and the keys that it holds at a step, as work to be done.

    Blocks in which no query sees a key are left out, and often that is all of a step's.
    """
    k_bsgk, v_bsgk, keys = held
    if dropout_key is not None:
        dropout_key = jax.random.fold_in(dropout_key, step)
    sight = Sight(sight.queries, keys, sight.causal, sight.near)
    return Work.of(options, q_bthk, k_bsgk, v_bsgk, sight, bias, dropout_key)


def _passed_on(held: tuple[Array | Side, ...], axes: tuple[str, ...]) -> tuple:
    """What the neighbour before this device held."""
    count = jax.lax.axis_size(axes)
    ring = [(device, (device + 1) % count) for device in range(count)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axes, ring), held)
