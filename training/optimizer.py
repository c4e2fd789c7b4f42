"""Optimizers.

Every optimizer is the same chain: clip the gradient, turn it into a direction, add decoupled
weight decay, multiply by the learning rate. Only the direction differs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from training.config import OptimizerConfig
from training.precision import with_precision

# The role of a parameter, by the last name in its path.
ROLES = {
    "kernel": "kernel", "embedding": "embedding", "bias": "vector", "scale": "vector",
    "lora_a": "kernel", "lora_b": "kernel", "score_vector": "vector",
    "content_bias": "vector", "distance_bias": "vector", "sinks": "vector",
}  # fmt: skip

# Root mean square of Muon's updates. arXiv:2502.16982 chooses it to equal AdamW's, so that one
# learning rate suits Muon's matrices and the parameters that Adam trains.
MUON_UPDATE_RMS = 0.2


def make_optimizer(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    rate_scales: Callable | None = None,
    direction_scales: Callable | None = None,
) -> optax.GradientTransformation:
    """Returns the optimizer of a config. Its update needs the parameters as third argument.

    `rate_scales` maps a tree of updates to factors on their learning rates. `direction_scales`
    does the same before weight decay is added, so weight decay is not scaled.
    """

    def decays(params):
        roles = ("kernel", "embedding") if config.decay_embeddings else ("kernel",)
        return jax.tree.map(lambda role: role in roles, parameter_roles(params))

    def scale_direction(updates, _):
        return jax.tree.map(jnp.multiply, updates, direction_scales(updates))

    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        _direction(config),
        # Added to the chain only if needed: checkpoints store one entry for each part.
        *([optax.stateless(scale_direction)] if direction_scales else []),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
        optax.scale_by_learning_rate(schedule),
    )

    def update(gradients, state, params):
        # Optax mixes its integer count with floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = chain.update(gradients, state, params)
        if rate_scales:
            # Scales the update, because Adam would divide out a factor on the gradient.
            updates = jax.tree.map(jnp.multiply, updates, rate_scales(updates))
        return updates, state

    return with_precision(optax.GradientTransformation(chain.init, update), config.rounding)


def parameter_roles(params):
    """Returns the same tree with "kernel", "embedding" or "vector" in place of every array."""

    def role(path, _):
        name = _names(path)[-1]
        if name not in ROLES:
            where = "/".join(_names(path))
            raise ValueError(f"parameter {where} must be named one of: {', '.join(ROLES)}")
        return ROLES[name]

    return jax.tree.map_with_path(role, params)


def ema_update(ema, params, decay: float):
    """Returns the moving average after one more step."""
    return jax.tree.map(lambda average, new: decay * average + (1 - decay) * new, ema, params)


def _direction(config: OptimizerConfig) -> optax.GradientTransformation:
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    match config.name:
        case "adam" | "adamw":
            return adam
        case "adafactor":
            # As published: factored second moment, no momentum, updates bounded relative to the
            # parameter's scale. A stack of layers counts as one parameter.
            return optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.scale_by_param_block_rms(),
            )
        case "lion":
            return optax.scale_by_lion(config.beta1, config.beta2)
        case "muon":
            return optax.partition({"muon": _muon(config.beta1), "adam": adam}, _muon_or_adam)
        case "sgd":
            return optax.trace(config.beta1) if config.beta1 else optax.identity()


def _muon(momentum: float) -> optax.GradientTransformation:
    def same_rms(updates, _):
        # An orthogonal (m, n) matrix has root mean square max(m, n) ** -0.5.
        def rescale(update, axes):
            fan_in, fan_out = (
                math.prod(update.shape[axis] for axis in group)
                for group in (axes.reduction_axis, axes.output_axis)
            )
            return update * (MUON_UPDATE_RMS * max(fan_in, fan_out) ** 0.5)

        return jax.tree.map(rescale, updates, _muon_axes(updates))

    return optax.chain(
        scale_by_muon(beta=momentum, weight_dimension_numbers=_muon_axes),
        optax.stateless(same_rms),
    )


def _muon_or_adam(params):
    """Returns labels for optax.partition: "muon" for kernels of blocks, "adam" for the rest."""

    def label(path, role):
        return "muon" if role == "kernel" and "blocks" in _names(path) else "adam"

    return jax.tree.map_with_path(label, parameter_roles(params))


def _muon_axes(kernels):
    """Returns the same tree with the axes of its matrix in place of every block's kernel."""

    def axes(path, kernel):
        return MuonDimensionNumbers(*matrix_axes("/".join(_names(path)), kernel.ndim))

    return jax.tree.map_with_path(axes, kernels)


def matrix_axes(name: str, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns which axes of a block's kernel are the rows of its matrix, and which the columns.

    The first axis is the layers: each layer has its own matrix. So has each expert.
    """
    first, *middle, last = range(2 if is_of_experts(name) else 1, ndim)
    if name.split("/")[-2] in ("query", "key", "value"):  # (L, D, H, K)
        return (first,), (*middle, last)
    return (first, *middle), (last,)  # (L, H, K, D) or (L, D, F)


def is_of_experts(name: str) -> bool:
    """Whether a parameter of the blocks is stacked over layers and experts (L, E, ...)."""
    return "experts" in name.split("/")


def _names(path) -> list[str]:
    return jax.tree_util.keystr(path, simple=True, separator="/").split("/")
