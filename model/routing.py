"""Which experts a token is sent to, with which weights, and the sums that routers are trained with.

E, the number of experts, also stands for "none": for padding, and for choices that a full expert
drops.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig

ROUTER = "router"  # the flax collection of the sums over tokens that losses and metrics need
LOAD_BALANCE, ROUTER_Z, DROPPED = "load_balance", "router_z", "dropped"  # their names


class Routing(NamedTuple):
    """The experts of each token."""

    experts_bty: Array  # from the highest score on; E: none
    weights_bty: Array  # float32; 0 where there is no expert
    slots_bty: Array | None = None  # place in the expert's buffer; None: without capacity


def capacity_of(config: TransformerConfig, length: int) -> int:
    """Returns how many tokens of a row one expert takes; 0: all that choose it."""
    if not config.expert_capacity:
        return 0
    even = config.experts_per_token * length / config.experts
    return min(length, max(1, math.ceil(config.expert_capacity * even)))


def route(
    config: TransformerConfig, logits_bte: Array, real_bt: Array, capacity: int
) -> tuple[Routing, dict[str, Array]]:
    """Returns the experts of each token, and sums over the tokens that are not padding.

    The load balance is that of each row, weighted by its tokens, as DeepSeek-V3's
    (arXiv:2412.19437, equations 17 to 20): E * sum over e of (share of the choices that are e) *
    (mean share of e in the scores). 1 is an even load, E the most uneven. It is not that of the
    whole batch, so that parts of a batch add up to the batch.
    """
    if config.router_scores == "softmax":
        scores_bte = shares_bte = jax.nn.softmax(logits_bte)
    else:
        scores_bte = jax.nn.sigmoid(logits_bte)
        shares_bte = scores_bte / _positive(scores_bte.sum(axis=-1, keepdims=True))
    weights_bty, experts_bty = jax.lax.top_k(scores_bte, config.experts_per_token)
    if config.router_renormalise:
        weights_bty /= _positive(weights_bty.sum(axis=-1, keepdims=True))

    real_bt1 = real_bt[..., None]
    experts_bty = jnp.where(real_bt1, experts_bty, config.experts)
    chosen_bte = jax.nn.one_hot(experts_bty, config.experts, dtype=jnp.float32).sum(axis=2)
    tokens_b1 = real_bt.sum(axis=1, dtype=jnp.float32)[:, None]
    mean_be = jnp.where(real_bt1, shares_bte, 0).sum(axis=1) / jnp.maximum(tokens_b1, 1)
    chosen_be = chosen_bte.sum(axis=1) / config.experts_per_token  # times the number of tokens
    squares_bt = jnp.square(jax.nn.logsumexp(logits_bte, axis=-1))
    totals = {
        LOAD_BALANCE: config.experts * (chosen_be * mean_be).sum(),
        ROUTER_Z: jnp.where(real_bt, squares_bt, 0).sum(),
    }
    slots_bty = None
    if capacity:
        # Earlier tokens first, so that no token depends on later ones.
        before_bte = (jnp.cumsum(chosen_bte, axis=1) - chosen_bte).astype(jnp.int32)
        slots_bty = jnp.take_along_axis(before_bte, experts_bty, axis=-1, mode="clip")
        is_full_bty = (slots_bty >= capacity) & real_bt1
        experts_bty = jnp.where(is_full_bty, config.experts, experts_bty)
        totals[DROPPED] = is_full_bty.sum(dtype=jnp.float32) / config.experts_per_token
    weights_bty = jnp.where(experts_bty < config.experts, weights_bty, 0)
    return Routing(experts_bty, weights_bty, slots_bty), totals


def _positive(x: Array) -> Array:
    """Returns x, or the smallest normal number: sigmoids may all be 0."""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)
