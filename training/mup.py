"""muP: learning rates that stay right when a model becomes wider (arXiv:2203.03466).

Table 8 of "Tensor Programs V", for Adam: with m = width / base width, the rate of hidden matrices
is divided by m; embeddings, vectors, and the output layer, whose result is divided by m, keep the
rate. Initial variances and the score scale are in model/config.py and model/layers.py.

The factor applies to the optimizer's direction and not to weight decay, as the paper advises: the
product of learning rate and weight decay does not depend on the width.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from model.attention import KINDS
from model.config import TransformerConfig
from training.config import FinetuneConfig, OptimizerConfig

Group = Literal["input", "hidden", "output", "vector"]

# Parameters by the last name in their path, and kernels by the name of their module.
LEAVES: dict[str, Group] = {
    "embedding": "input", "bias": "vector", "scale": "vector", "content_bias": "vector",
    "distance_bias": "vector", "sinks": "vector",
}  # fmt: skip
QKV = ("query", "key", "value")
EXTRA_QKV = [f"{prefix}_{n}" for kind in KINDS.values() for prefix in kind.extra_qkv for n in QKV]
MODULES: dict[str, Group] = {
    "projection": "input",  # of patches
    **dict.fromkeys((*QKV, *EXTRA_QKV, "out", "distance_key"), "hidden"),  # of attention
    **dict.fromkeys(("in", "gate"), "hidden"),  # of feed-forward layers, with "out"
    **dict.fromkeys(("dense", "transform"), "hidden"),  # before output layers
    **dict.fromkeys(("output", "classes", "quantiles", "next_sentence"), "output"),
}
# Optimizers without a rule, and why.
REFUSED_OPTIMIZERS = {
    "adafactor": "its steps are relative to the size of each parameter",
    "muon": "its updates are orthogonal matrices",
    "sgd": "its rates would have to grow with the width, which clipping by norm undoes",
}


def parameter_group(name: str) -> Group:
    """Returns the group of a parameter; raises ValueError for one that is not known here."""
    *_, module, leaf = name.split("/")
    group = MODULES.get(module) if leaf == "kernel" else LEAVES.get(leaf)
    if group is None:
        raise ValueError(
            f"parameter {name} has no muP group; add its name to the tables in training/mup.py, "
            "or set model.parametrization=standard"
        )
    return group


def direction_scales(config: TransformerConfig) -> Callable[[dict], dict] | None:
    """Returns a function from updates to factors on them; None with the standard rule."""
    if config.parametrization == "standard":
        return None

    def scales(updates: dict) -> dict:
        factors = {}
        for name, update in flatten_dict(updates, sep="/").items():
            factor = 1 / config.width_multiplier if parameter_group(name) == "hidden" else 1.0
            factors[name] = jnp.asarray(factor, update.dtype)
        return unflatten_dict(factors, sep="/")

    return scales


def mup_problems(
    model: TransformerConfig, optimizer: OptimizerConfig, finetune: FinetuneConfig
) -> Iterator[str]:
    """Yields a message for optimizers, adapters and layers for which muP has no settled rule."""
    if model.parametrization == "standard":
        return
    if reason := REFUSED_OPTIMIZERS.get(optimizer.name):
        yield (
            f"model.parametrization=mup has no settled rule for optimizer.name={optimizer.name}: "
            f"{reason}; choose adam, adamw or lion"
        )
    if finetune.lora_rank:
        yield (
            "model.parametrization=mup has no settled rule for adapters, finetune.lora_rank="
            f"{finetune.lora_rank}; set it to 0, or model.parametrization=standard"
        )
    for key in ("mixer", "bridge"):
        if (value := getattr(model, key)) != "attention":
            yield (
                f"model.parametrization=mup has no settled rule for model.{key}={value}; "
                "choose attention, or set model.parametrization=standard"
            )
    if model.has_score_vector:
        yield (
            f"model.parametrization=mup has no settled rule for model.attention={model.attention}; "
            "choose another kind, or set model.parametrization=standard"
        )
