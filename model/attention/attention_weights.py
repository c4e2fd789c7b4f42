"""Reads the weights of any kind of attention from its own pass.

With queries and keys fixed, the output of every kind is linear in the values: y = W v. So the pass
itself, run with columns of the identity in place of the values, returns columns of W. K columns fit
into one run. This costs S / K runs, and happens only if a caller makes the collection `CAPTURE`
mutable.

One run reads off K values; the J runs are blocks of keys.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import QKV
from model.attention.interface import AttentionInputs

CAPTURE = "capture"  # the flax collection of what was captured
PERTURBATIONS = "perturbations"  # zeros that are added to the weights: their gradient is wanted
OWN = "own"  # the key of the queries, keys and values that every kind has

Attend = Callable[[AttentionInputs], Array]


def captures(module: nn.Module) -> bool:
    """Whether the caller asks for hidden states and attention weights."""
    return module.is_mutable_collection(CAPTURE) and not module.is_initializing()


def attend_with_weights(
    attend: Attend, inputs: AttentionInputs, perturbation_bhts: Array | None = None
) -> tuple[Array, Array]:
    """Returns the output of a pass, (B, T, H, K), and its weights, float32 (B, H, T, S).

    A kind may have several projections of values, such as those of longformer's global tokens; each
    pair of query and key uses one of them. `perturbation_bhts` is added to the weights.
    """
    used = {OWN: inputs.qkv}

    def project(*prefix: str, **options) -> QKV:
        key = _key(*prefix, **options)
        if key not in used:
            used[key] = inputs.project(*prefix, **options)
        return used[key]

    y_bthk = attend(dataclasses.replace(inputs, project=project))
    parts = {key: _weights(attend, inputs, used, key) for key in used}
    if perturbation_bhts is not None:
        visible_b1ts = inputs.mask_spec.mask_b1ts()
        for key, weights_bhts in parts.items():
            is_used = visible_b1ts if len(parts) == 1 else weights_bhts > 0
            v_bshk = used[key].v_bsgk.astype(jnp.float32)
            v_bshk = jnp.repeat(v_bshk, y_bthk.shape[2] // v_bshk.shape[2], axis=2)
            part_bhts = jnp.where(is_used, perturbation_bhts, 0.0)
            more_bthk = jnp.einsum("bhts,bshk->bthk", part_bhts, v_bshk)
            y_bthk += more_bthk.astype(y_bthk.dtype)
    return y_bthk, sum(parts.values())


def _key(*prefix: str, **options) -> str:
    """The name of a projection: the arguments of `AttentionInputs.project`."""
    return repr((prefix, sorted(options.items())))


def _weights(attend: Attend, inputs: AttentionInputs, used: dict[str, QKV], key: str) -> Array:
    """Returns the weights of the values in `used[key]`, (B, H, T, S); other values are zeros."""
    used = jax.lax.stop_gradient(used)
    v_bsgk = used[key].v_bsgk
    keys, size = v_bsgk.shape[1], v_bsgk.shape[3]

    def columns(first: Array) -> Array:
        is_one_sk = jnp.arange(keys)[:, None] == first + jnp.arange(size)
        one_hot = jnp.broadcast_to(is_one_sk[:, None], v_bsgk.shape).astype(v_bsgk.dtype)
        values = {each: jnp.zeros_like(qkv.v_bsgk) for each, qkv in used.items()} | {key: one_hot}

        def project(*prefix: str, **options) -> QKV:
            each = _key(*prefix, **options)
            return used[each]._replace(v_bsgk=values[each])

        qkv = used[OWN]._replace(v_bsgk=values[OWN])
        return attend(dataclasses.replace(inputs, qkv=qkv, project=project))

    # One run after another, not batched: with these shapes the pass uses its usual kernels.
    y_jbthk = jax.lax.map(columns, jnp.arange(0, keys, size))
    weights_bhtjk = y_jbthk.astype(jnp.float32).transpose(1, 3, 2, 0, 4)
    return weights_bhtjk.reshape(*weights_bhtjk.shape[:3], -1)[..., :keys]
