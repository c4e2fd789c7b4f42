"""How an update gets into parameters of bfloat16, which have 8 bits for what a float32 has 24.

An update below a 256th of its parameter is lost when their sum is rounded to the nearest. So the
optimizer works in float32, and either keeps parameters of its own in float32, which the model gets
rounded (optimizer.rounding=master), or the sum is rounded up or down at random, such that it is
right on average (stochastic), which costs no memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array


class Mastered(NamedTuple):
    """The state of an optimizer that has parameters of its own."""

    master: dict  # float32
    state: optax.OptState


def with_precision(
    optimizer: optax.GradientTransformation, rounding: str
) -> optax.GradientTransformation:
    """The optimizer as `rounding` wants it; its updates are float32, but with "nearest"."""
    if rounding == "nearest":
        return optimizer
    if rounding == "stochastic":
        return optax.GradientTransformation(
            lambda params: optimizer.init(_float32(params)),
            lambda gradients, state, params: optimizer.update(
                _float32(gradients), state, _float32(params)
            ),
        )

    def init(params):
        # A copy, also where it was float32 already: the parameters' own memory is given up.
        master = jax.tree.map(jnp.copy, _float32(params))
        return Mastered(master, optimizer.init(master))

    def update(gradients, state, params):
        del params  # rounded
        updates, inner = optimizer.update(_float32(gradients), state.state, state.master)
        return updates, Mastered(optax.apply_updates(state.master, updates), inner)

    return optax.GradientTransformation(init, update)


def updated(rounding: str, params, updates, opt_state: optax.OptState, key: Array):
    """The parameters after an update, of the type that they had; `key` is another each time."""
    if rounding == "nearest":
        return optax.apply_updates(params, updates)
    if rounding == "master":
        return jax.tree.map(lambda p, own: own.astype(p.dtype), params, opt_state.master)
    leaves, tree = jax.tree.flatten(params)
    sums = [
        p.astype(jnp.float32) + u for p, u in zip(leaves, jax.tree.leaves(updates), strict=True)
    ]
    keys = [jax.random.fold_in(key, number) for number in range(len(leaves))]
    return tree.unflatten(map(stochastic_round, sums, keys))


def starting_from(opt_state: optax.OptState, params) -> optax.OptState:
    """A state that has not seen a gradient yet, for parameters other than it was made with."""
    if not isinstance(opt_state, Mastered):
        return opt_state
    place = lambda new, old: jax.device_put(new, old.sharding)  # noqa: E731
    return opt_state._replace(master=jax.tree.map(place, _float32(params), opt_state.master))


def stochastic_round(x: Array, key: Array) -> Array:
    """float32 as one of the two nearest bfloat16, the nearer the likelier: x on average."""
    # A bfloat16 is the upper half of a float32. What is added to the lower half carries over to
    # the upper as often as the lower is large.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    added = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    upper = ((bits + added) >> 16).astype(jnp.uint16)
    rounded = jax.lax.bitcast_convert_type(upper, jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def _float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
