"""Updates of bfloat16 parameters, which have 8 significant bits where float32 has 24.

Rounding to nearest loses any update below 1/256 of its parameter. So the optimizer works in
float32. It either keeps float32 copies of the parameters and gives the model rounded ones
(optimizer.rounding=master), or rounds the sum up or down at random so that it is right on average
(stochastic), which costs no memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array


class Mastered(NamedTuple):
    """The state of an optimizer with master parameters."""

    master: dict  # float32
    state: optax.OptState


def rounded_kernels(params):
    """Returns the parameters of a bfloat16 model with its kernels in bfloat16.

    The model multiplies by bfloat16 kernels anyway. But now their gradients are bfloat16 as well
    when devices sum them, which halves the bytes sent; each device still sums its own tokens in
    float32 (optimizer.gradient_dtype). Tables of embeddings are left as they are, because sums over
    tokens would be in bfloat16, and routers, which compute in float32.
    """

    def rounded(path, leaf):
        names = [entry.key for entry in path]
        is_kernel = names[-1] == "kernel" and "router" not in names
        return leaf.astype(jnp.bfloat16) if is_kernel else leaf

    return jax.tree.map_with_path(rounded, params)


def with_precision(
    optimizer: optax.GradientTransformation, rounding: str
) -> optax.GradientTransformation:
    """Returns the optimizer for a kind of rounding. Except for "nearest", updates are float32."""
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
        # Always a copy, because the parameters' own memory is donated.
        master = jax.tree.map(jnp.copy, _float32(params))
        return Mastered(master, optimizer.init(master))

    def update(gradients, state, params):
        del params  # rounded; the master copies are exact
        updates, inner = optimizer.update(_float32(gradients), state.state, state.master)
        return updates, Mastered(optax.apply_updates(state.master, updates), inner)

    return optax.GradientTransformation(init, update)


def updated(rounding: str, params, updates, opt_state: optax.OptState, key: Array):
    """Returns the updated parameters in their own type. `key` must be new for every update."""
    if rounding == "nearest":
        return optax.apply_updates(params, updates)
    if rounding == "master":
        return jax.tree.map(lambda p, own: own.astype(p.dtype), params, opt_state.master)
    leaves, tree = jax.tree.flatten(params)
    exact = [
        p.astype(jnp.float32) + u for p, u in zip(leaves, jax.tree.leaves(updates), strict=True)
    ]
    keys = [jax.random.fold_in(key, number) for number in range(len(leaves))]
    return tree.unflatten(map(stochastic_round, exact, keys))


def starting_from(opt_state: optax.OptState, params) -> optax.OptState:
    """Returns a fresh optimizer state, changed to start from other parameters."""
    if not isinstance(opt_state, Mastered):
        return opt_state
    place = lambda new, old: jax.device_put(new, old.sharding)  # noqa: E731
    return opt_state._replace(master=jax.tree.map(place, _float32(params), opt_state.master))


def stochastic_round(x: Array, key: Array) -> Array:
    """Rounds float32 to one of the two nearest bfloat16, such that the mean is x."""
    # A bfloat16 is the upper half of a float32. A random number added to the lower half carries
    # into the upper half with a probability proportional to the lower half.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    added = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    upper = ((bits + added) >> 16).astype(jnp.uint16)
    rounded = jax.lax.bitcast_convert_type(upper, jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def _float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
