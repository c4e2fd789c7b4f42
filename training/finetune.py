"""Which parameters a run trains, and how they become the model's parameters.

A run trains all parameters; or all but the frozen ones; or low-rank adapters of another run's
kernels (LoRA, arXiv:2106.09685) together with all parameters that the other run does not have.

Names are paths such as backbone/encoder/blocks/self_attention/query/kernel. The adapter of this
kernel is the pair .../query/lora_a and .../query/lora_b.
"""

import dataclasses
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from experiment.schema import ConfigError, did_you_mean
from model.config import TransformerConfig
from training.config import FinetuneConfig
from training.optimizer import matrix_axes

KERNEL, LORA_A, LORA_B = "/kernel", "/lora_a", "/lora_b"


def by_name(params: Mapping) -> dict:
    """Returns the leaves of a parameter tree by name."""
    return flatten_dict(params, sep="/")


def as_tree(named: Mapping) -> dict:
    """The inverse of `by_name`."""
    return unflatten_dict(dict(named), sep="/")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Which parameters are trainable, frozen, or another run's. By default all are trainable.

    A run's own parameters are those in its state and its checkpoints.
    """

    frozen: frozenset[str] = frozenset()  # the run's own, but never updated
    base: frozenset[str] = frozenset()  # another run's, read from its checkpoint
    adapted: frozenset[str] = frozenset()  # those of `base` that have an adapter
    rank: int = 0
    alpha: float = 1.0

    def init_params(self, params: dict, key: Array) -> dict:
        """Returns the run's own initial parameters from the model's, both in Flax's boxes."""
        if not self.rank:
            return params
        named = by_name(params)
        own = {name: box for name, box in named.items() if name not in self.base}
        for name in self.adapted:
            own |= _adapter(name, named[name], self.rank, key)
        return as_tree(own)

    def split(self, own: dict) -> tuple[dict, dict]:
        """Returns the (trainable, frozen) parts of the run's own parameters."""
        if not self.frozen:
            return own, {}
        named = by_name(own)
        trainable = {name: leaf for name, leaf in named.items() if name not in self.frozen}
        return as_tree(trainable), as_tree({name: named[name] for name in self.frozen})

    def join(self, trainable: dict, frozen: dict) -> dict:
        """The inverse of `split`."""
        return as_tree(by_name(trainable) | by_name(frozen)) if frozen else trainable

    def merge(self, own: dict, base: dict) -> dict:
        """Returns the model's parameters from the run's own and those of its base."""
        return merge_lora(own, base, self.alpha) if self.rank else own


TRAIN_ALL = Tuning()


def select_trainable(config: FinetuneConfig, model_params: dict, new: Collection[str]) -> Tuning:
    """Splits the model's parameters as the config says; refuses patterns that match nothing.

    `model_params` may be shapes. `new` are the names that the other run does not have.
    """
    named = by_name(model_params)
    if not config.lora_rank:
        frozen = _matching("freeze", config.freeze, named) if config.freeze else frozenset()
        if len(frozen) == len(named):
            raise ConfigError(
                f"finetune.freeze={config.freeze!r} matches all parameters, so nothing "
                "is left to train; make it narrower"
            )
        return Tuning(frozen)
    trainable = set(new)
    if config.lora_also_train:
        trainable |= _matching("lora_also_train", config.lora_also_train, named)
    kernels = [name for name in named if "blocks" in name.split("/") and name.endswith(KERNEL)]
    adapted = _matching("lora_targets", config.lora_targets, kernels)
    if both := sorted(adapted & trainable):
        why = "new, as init_from has none that fits" if both[0] in new else "in lora_also_train"
        raise ConfigError(f"finetune.lora_targets matches {both[0]}, which is {why}; narrow it")
    for name in adapted:
        _refuse_rank(name, named[name].shape, config.lora_rank)
    base = frozenset(named.keys() - trainable)
    return Tuning(frozenset(), base, adapted, config.lora_rank, config.lora_alpha)


def _matching(key: str, pattern: str, names: Collection[str]) -> frozenset[str]:
    found = frozenset(name for name in names if re.fullmatch(pattern, name))
    if not found:
        what = "kernel of the blocks" if key == "lora_targets" else "full name of a parameter"
        raise ConfigError(
            f"finetune.{key}={pattern!r} matches no {what}.{_suggestion(pattern, names)} "
            f"One is: {min(names)}"
        )
    return found


def _suggestion(pattern: str, names: Collection[str]) -> str:
    """Returns a "did you mean" for the first word of the pattern that is in no name."""
    known = {word for name in names for word in name.split("/")}
    unknown = [word for word in re.findall(r"\w+", pattern) if word not in known]
    return next(filter(None, (did_you_mean(word, known) for word in unknown)), "")


def _refuse_rank(name: str, shape: tuple[int, ...], rank: int) -> None:
    sizes = [math.prod(shape[axis] for axis in axes) for axes in matrix_axes(name, len(shape))]
    if rank > min(sizes):
        raise ConfigError(
            f"finetune.lora_rank={rank} exceeds the rank of {name}, {sizes[0]}x{sizes[1]} in each "
            f"layer; set it to {min(sizes)} or less"
        )


def _adapter(name: str, box: nn.LogicallyPartitioned, rank: int, key: Array) -> dict:
    """Returns two matrices per layer (or expert), rows x rank and rank x columns, in float32.

    The second is 0 at the start, so their product is 0, too.
    """
    shape, names = box.value.shape, box.names
    rows, columns = matrix_axes(name, len(shape))
    stacked = rows[0]  # how many axes there are before those of a matrix
    a_shape = (*shape[:stacked], *(shape[axis] for axis in rows), rank)
    b_shape = (*shape[:stacked], rank, *(shape[axis] for axis in columns))
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    # Outputs of A have the scale of its inputs, whatever the width.
    a = jax.random.normal(key, a_shape) * math.prod(a_shape[stacked:-1]) ** -0.5
    a_names = (*names[:stacked], *(names[axis] for axis in rows), None)
    b_names = (*names[:stacked], None, *(names[axis] for axis in columns))
    stem = name.removesuffix(KERNEL)
    return {
        stem + LORA_A: nn.LogicallyPartitioned(a, a_names),
        stem + LORA_B: nn.LogicallyPartitioned(jnp.zeros(b_shape), b_names),
    }


def merge_lora(own: dict, base: dict, alpha: float) -> dict:
    """Returns the base with adapters added to its kernels, and the run's other parameters.

    It is applied to parameter trees, inside the loss: the model knows nothing of LoRA, and any
    kernel can be adapted. It costs a copy of the adapted kernels and, in the backward pass,
    their full gradients, one layer stack at a time. It saves optimizer state and disk space.
    """
    named = by_name(own)
    merged = by_name(base)
    for name, leaf in named.items():
        if name.endswith(LORA_A):
            stem = name.removesuffix(LORA_A)
            kernel = merged[stem + KERNEL]
            merged[stem + KERNEL] = _adapted(kernel, leaf, named[stem + LORA_B], alpha)
        elif not name.endswith(LORA_B):
            merged[name] = leaf
    return as_tree(merged)


def _adapted(kernel: Array, a: Array, b: Array, alpha: float) -> Array:
    rank = a.shape[-1]
    stacked = tuple(range(a.ndim + b.ndim - 2 - kernel.ndim))  # layers, experts
    over_rank = ((a.ndim - 1,), (len(stacked),))
    # Full precision, also on TPUs: the same numbers as a merged and stored kernel.
    axes = over_rank, (stacked, stacked)
    delta = jax.lax.dot_general(a, b, axes, precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + (alpha / rank) * delta).astype(kernel.dtype)


def rate_scales(config: FinetuneConfig, model: TransformerConfig) -> Callable[[dict], dict] | None:
    """Returns a function from updates to factors on their learning rate; None if all are 1.

    As in BEiT (arXiv:2106.08254): of L layers, layer l (from 0) has decay^(L - l), parameters
    before the first layer have decay^(L + 1), those after the last have 1, and those outside the
    backbone have `head_scale`. A tied token table counts as before the first layer.

    Encoder and decoder each count their own layers, because every decoder layer reads the
    encoder's last layer.
    """
    if config.layer_decay == config.head_scale == 1:
        return None
    layers = {}
    if model.has_encoder:
        layers["encoder"] = model.encoder_layers
    if model.has_decoder:
        layers["decoder"] = model.decoder_layers

    def scale(name: str, update: Array) -> Array:
        place, *path = name.split("/")
        if place != "backbone":
            return jnp.asarray(config.head_scale, update.dtype)
        depth = layers.get(path[0], max(layers.values()))
        if path[1] == "blocks":
            exponents = depth - jnp.arange(depth, dtype=jnp.float32)
            exponents = exponents.reshape(-1, *[1] * (update.ndim - 1))
        else:
            exponents = jnp.float32(0 if path[1] == "final_norm" else depth + 1)
        return (jnp.float32(config.layer_decay) ** exponents).astype(update.dtype)

    def scales(updates: dict) -> dict:
        return as_tree({name: scale(name, update) for name, update in by_name(updates).items()})

    return scales


def parameter_counts(own: dict, base: dict, tuning: Tuning) -> dict[str, int]:
    """How many parameters the model has, and how many of them are trained."""
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    trainable, frozen = tuning.split(own)
    return {"trainable": count(trainable), "total": count((trainable, frozen, base))}
