"""Performer: random features that estimate softmax's kernel (FAVOR+, Choromanski et al., 2020).

E[phi(q) phi(k)] = exp(q k * scale). The features are positive, so no sum of weights comes near
zero. Their directions are orthogonal, which lowers the variance.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.attention.linear import FeatureMap, FeatureMapAttention

if TYPE_CHECKING:
    from model.config import TransformerConfig

RELU_EPSILON = 1e-3  # keeps the sum of weights above 0; the value of the paper's code


class Performer(FeatureMapAttention):
    name = "performer"
    description = "softmax's kernel by random features (FAVOR+), in linear time"
    keys = ("attention_features", "attention_kernel", "attention_redraw")
    is_random = True

    def shared(self, config: "TransformerConfig", rng: Callable[[], Array | None]) -> Array:
        """Returns the directions of the features, (M, K): drawn with a key, else fixed."""
        size = config.attention_features, config.head_size
        key = rng()
        return jnp.asarray(fixed_directions(*size)) if key is None else drawn_directions(key, *size)

    def feature_map(self, config: "TransformerConfig", shared: Array) -> FeatureMap:
        is_softmax = config.attention_kernel == "softmax"
        return (softmax_features if is_softmax else relu_features)(shared, config.score_scale)

    def feature_count(self, config: "TransformerConfig") -> int:
        return config.attention_features


def softmax_features(directions_mk: Array, scale: float) -> FeatureMap:
    """Logarithms of exp(w x - |x|^2 / 2) / sqrt(M), where x is q or k times sqrt(scale)."""

    def apply(x: Array) -> Array:
        x = x.astype(jnp.float32) * scale**0.5
        squares = jnp.square(x).sum(axis=-1, keepdims=True)
        return x @ directions_mk.T - squares / 2 - np.log(len(directions_mk)) / 2

    return FeatureMap(apply, len(directions_mk), are_logs=True)


def relu_features(directions_mk: Array, scale: float) -> FeatureMap:
    """relu(w x) / sqrt(M) + epsilon: another kernel, not an estimate of softmax's."""

    def apply(x: Array) -> Array:
        x = x.astype(jnp.float32) * (scale / len(directions_mk)) ** 0.5
        return jax.nn.relu(x @ directions_mk.T) + RELU_EPSILON

    return FeatureMap(apply, len(directions_mk), are_logs=False)


@functools.cache
def fixed_directions(count: int, head_size: int) -> np.ndarray:
    """Returns the directions of evaluation and decoding, which are not random, (M, K)."""
    normal = np.random.default_rng(0).normal(size=_shape(count, head_size)).astype(np.float32)
    return _orthogonal(normal, count, np)


def drawn_directions(key: Array, count: int, head_size: int) -> Array:
    """Draws directions, (M, K)."""
    return _orthogonal(jax.random.normal(key, _shape(count, head_size)), count, jnp)


def _shape(count: int, head_size: int) -> tuple[int, ...]:
    return 2, -(-count // head_size), head_size, head_size


def _orthogonal(normal_2okk: Array, count: int, xp: ModuleType) -> Array:
    """Makes directions that are orthogonal in groups of K, with the lengths of normal vectors.

    Each one is a normal vector, so the expectation is that of independent ones.
    """
    q_okk, r_okk = xp.linalg.qr(normal_2okk[0])
    # QR chooses signs; without this correction some directions would be more likely.
    signs_ok = xp.sign(xp.diagonal(r_okk, axis1=-2, axis2=-1))
    directions_mk = xp.swapaxes(q_okk * signs_ok[:, None], -1, -2).reshape(-1, q_okk.shape[-1])
    lengths_m = xp.sqrt(xp.square(normal_2okk[1]).sum(axis=-1)).reshape(-1)
    return (directions_mk * lengths_m[:, None])[:count]
