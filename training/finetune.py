"""Which parameters a run trains, and how what it trains becomes the model's parameters.

All of them; or all but those that are frozen; or adapters of low rank beside kernels that stay
as another run left them (LoRA, arXiv:2106.09685), with whatever that run does not have.

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
    """The leaves of a tree of parameters by their names."""
    return flatten_dict(params, sep="/")


def as_tree(named: Mapping) -> dict:
    return unflatten_dict(dict(named), sep="/")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What of a model's parameters a run trains, and where the others are; by default it has all.

    The run's own parameters are those in its state and in its checkpoints.
    """

    frozen: frozenset[str] = frozenset()  # its own, but never changed
    base: frozenset[str] = frozenset()  # another run's, read from its checkpoint
    adapted: frozenset[str] = frozenset()  # those of `base` that have an adapter
    rank: int = 0
    alpha: float = 1.0

    def init_params(self, params: dict, key: Array) -> dict:
        """The run's own parameters at the start, out of the model's; both in boxes of Flax's."""
        if not self.rank:
            return params
        named = by_name(params)
        own = {name: box for name, box in named.items() if name not in self.base}
        for name in self.adapted:
            own |= _adapter(name, named[name], self.rank, key)
        return as_tree(own)

    def split(self, own: dict) -> tuple[dict, dict]:
        """The run's own parameters that are trained, and those that are not."""
        if not self.frozen:
            return own, {}
        named = by_name(own)
        trainable = {name: leaf for name, leaf in named.items() if name not in self.frozen}
        return as_tree(trainable), as_tree({name: named[name] for name in self.frozen})

    def join(self, trainable: dict, frozen: dict) -> dict:
        """The inverse of `split`."""
        return as_tree(by_name(trainable) | by_name(frozen)) if frozen else trainable

    def merge(self, own: dict, base: dict) -> dict:
        """The model's parameters out of the run's own and its base's."""
        return merge_lora(own, base, self.alpha) if self.rank else own


TRAIN_ALL = Tuning()


def select_trainable(config: FinetuneConfig, model_params: dict, new: Collection[str]) -> Tuning:
    """What is to be trained of parameters (or their shapes); refuses patterns that match none.

    `new` are the names of those that are not taken over from another run.
    """
    named = by_name(model_params)
    if not config.lora_rank:
        frozen = _matching("freeze", config.freeze, named) if config.freeze else frozenset()
        if len(frozen) == len(named):
            raise ConfigError(
                f"finetune.freeze={config.freeze!r} matches all parameters, so that there is "
                "nothing to train; make it narrower"
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
        what = "kernel of the blocks" if key == "lora_targets" else "whole name of a parameter"
        raise ConfigError(
            f"finetune.{key}={pattern!r} matches no {what}.{_near(pattern, names)} "
            f"One is: {min(names)}"
        )
    return found


def _near(pattern: str, names: Collection[str]) -> str:
    """What a word of the pattern that is in no name may have been meant to be."""
    known = {word for name in names for word in name.split("/")}
    strange = [word for word in re.findall(r"\w+", pattern) if word not in known]
    return next(filter(None, (did_you_mean(word, known) for word in strange)), "")


def _refuse_rank(name: str, shape: tuple[int, ...], rank: int) -> None:
    sizes = [math.prod(shape[axis] for axis in axes) for axes in matrix_axes(name, len(shape))]
    if rank > min(sizes):
        raise ConfigError(
            f"finetune.lora_rank={rank} exceeds the rank of {name}, {sizes[0]}x{sizes[1]} in each "
            f"layer; set it to {min(sizes)} or less"
        )


def _adapter(name: str, box: nn.LogicallyPartitioned, rank: int, key: Array) -> dict:
    """A pair of matrices for each layer, rows x rank and rank x columns.

    Their product is 0 at the start, since the second is. They are float32 whatever the kernel is:
    they are small, and so are their updates.
    """
    shape, names = box.value.shape, box.names
    rows, columns = matrix_axes(name, len(shape))
    a_shape = (shape[0], *(shape[axis] for axis in rows), rank)
    b_shape = (shape[0], rank, *(shape[axis] for axis in columns))
    key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    # What comes out of A is as large as what went in, whatever the width.
    a = jax.random.normal(key, a_shape) * math.prod(a_shape[1:-1]) ** -0.5
    a_names = (names[0], *(names[axis] for axis in rows), None)
    b_names = (names[0], None, *(names[axis] for axis in columns))
    stem = name.removesuffix(KERNEL)
    return {
        stem + LORA_A: nn.LogicallyPartitioned(a, a_names),
        stem + LORA_B: nn.LogicallyPartitioned(jnp.zeros(b_shape), b_names),
    }


def merge_lora(own: dict, base: dict, alpha: float) -> dict:
    """The base with the adapters added to its kernels, and with the other parameters of the run.

    This is all there is to LoRA here: a function of parameter trees, inside the loss, so that
    the model need not know, any kernel can be adapted, and what is exported is what was trained.
    It costs a copy of the adapted kernels and, in the backward pass, their whole gradients, one
    layer stack at a time: little beside the activations of a batch of some size, and nothing of
    it stays. What LoRA is for is saved: the optimizer's state, and room on the disk.
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
    layers = ((0,), (0,))
    over_rank = ((a.ndim - 1,), (1,))
    # In full precision, also on a TPU: the result is as if it had been stored.
    delta = jax.lax.dot_general(a, b, (over_rank, layers), precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + (alpha / rank) * delta).astype(kernel.dtype)


def rate_scales(config: FinetuneConfig, model: TransformerConfig) -> Callable[[dict], dict] | None:
    """Factors on the learning rate for a tree of updates; None if all are 1.

    As BEiT has it (arXiv:2106.08254): of L layers, numbered from 0, layer l has decay^(L - l), what
    comes before the first has decay^(L + 1), and what comes after the last has 1, or if it is no
    part of the backbone `head_scale`. A token table that is also the output layer comes first.

    Encoder and decoder each count their own layers: every layer of the decoder reads the
    encoder's last, which is thus not as many layers from the answer as both have together.
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
