"""Pruning: weights that become exactly zero during training, and stay zero.

The masks are part of the train state, so a resumed run continues with the same zeros. A mask never
grows back: weights that are pruned once count as the smallest from then on. Gradients, updated
parameters, master copies and moving averages are all masked, so evaluation and export see the same
zeros.

The importance of an attention head is that of Michel et al. (arXiv:1905.10650), |dL / d(gate)| of a
gate on the head's output. The output projection is linear, so this is |<W, dL/dW>| over the rows W
of the head in the output projection. It is averaged over steps.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from experiment.schema import ConfigError
from training.finetune import as_tree, by_name
from training.optimizer import is_of_experts
from training.precision import Mastered
from training.processes import is_primary, write_json
from training.pruning_schedule import PruneConfig, PruneSchedule, prune_schedule

SCORE_DECAY = 0.99  # of the moving average of head scores
GROUP, REMAINING = 4, 2  # 2:4: two weights of four remain
LARGEST = 2**31 - 1  # weights that one sort can number
OUT = "/out/kernel"
HEAD_SCORES = "head_scores.json"  # a file of the run directory


@flax.struct.dataclass
class PruneState:
    """What is pruned so far. Checkpoints store these field names."""

    # False where pruned. By parameter; for method=heads by attention module, (L, H).
    masks: dict
    scores: dict | None  # importance of heads by attention module, (L, H)


@dataclasses.dataclass(frozen=True)
class Pruner:
    """Prunes the parameters in `names`; for method=heads, the attention modules in `names`."""

    config: PruneConfig
    schedule: PruneSchedule
    names: tuple[str, ...]

    @property
    def prunes_heads(self) -> bool:
        return self.config.method == "heads"

    def init(self, params: dict) -> PruneState:
        """Returns the state before the first step: nothing is pruned."""
        named = by_name(params)
        if not self.prunes_heads:
            masks = {name: jnp.ones(named[name].shape, bool) for name in self.names}
            return PruneState(as_tree(masks), None)
        shapes = {name: named[name + OUT].shape[:2] for name in self.names}
        masks = {name: jnp.ones(shape, bool) for name, shape in shapes.items()}
        scores = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
        return PruneState(as_tree(masks), as_tree(scores))

    def shardings(self, state: PruneState, params: dict, replicated) -> PruneState:
        """Returns the shardings of a state: masks as their parameters; `params` are shardings."""
        if self.prunes_heads:
            return jax.tree.map(lambda _: replicated, state)
        named = by_name(params)
        return PruneState(as_tree({name: named[name] for name in self.names}), None)

    def masked(self, state: PruneState, tree: dict) -> dict:
        """Returns a tree like the parameters, with zeros where these are pruned."""
        named = by_name(tree)
        for name, mask in self._weight_masks(state, named).items():
            named[name] = jnp.where(mask, named[name], jnp.zeros((), named[name].dtype))
        return as_tree(named)

    def masked_master(self, state: PruneState, opt_state: optax.OptState) -> optax.OptState:
        """Returns the optimizer's state with zeros in its master parameters, if it has them."""
        if not isinstance(opt_state, Mastered):
            return opt_state
        return opt_state._replace(master=self.masked(state, opt_state.master))

    def _weight_masks(self, state: PruneState, named: Mapping[str, Array]) -> dict[str, Array]:
        """Returns masks by parameter name, which broadcast to the parameter."""
        masks = by_name(state.masks)
        if not self.prunes_heads:
            return masks
        found = {}
        for module, mask_lh in masks.items():
            for name, leaf in named.items():
                if name.startswith(f"{module}/") and name.endswith("/kernel"):
                    found[name] = _mask_of_heads(mask_lh, name, leaf.shape)
        return found

    def update(
        self,
        state: PruneState,
        old_params: dict,
        gradients: dict,
        params: dict,
        step: Array,
        is_late: Array,
    ) -> PruneState:
        """Returns the state after `step` steps, with more pruned if the schedule says so.

        `gradients` are those of `old_params`; `params` are updated. With `is_late`, it prunes what
        a skipped step should have pruned.
        """
        if self.prunes_heads:
            state = state.replace(scores=self._scores(state, old_params, gradients))
        steps = jnp.asarray(self.schedule.steps, jnp.int32)
        number = (steps <= step).sum(dtype=jnp.int32)
        is_due = (steps == step).any() | is_late
        masks = jax.lax.cond(
            is_due & (number > 0),
            lambda: self._pruned(state, by_name(params), number),
            lambda: state.masks,
        )
        return state.replace(masks=masks)

    def _scores(self, state: PruneState, params: dict, gradients: dict) -> dict:
        """Returns the moving average of scores. That of a pruned head stays as it was."""
        weights, gradients = by_name(params), by_name(gradients)
        masks, scores = by_name(state.masks), by_name(state.scores)
        for name, old_lh in scores.items():
            w_lhkd = weights[name + OUT].astype(jnp.float32)
            g_lhkd = gradients[name + OUT].astype(jnp.float32)
            new_lh = jnp.abs((w_lhkd * g_lhkd).sum(axis=(2, 3)))
            average_lh = SCORE_DECAY * old_lh + (1 - SCORE_DECAY) * new_lh
            scores[name] = jnp.where(masks[name], average_lh, old_lh)
        return as_tree(scores)

    def _pruned(self, state: PruneState, named: Mapping[str, Array], number: Array) -> dict:
        """Returns the masks of the schedule's entry `number`, counted from 1."""
        masks = by_name(state.masks)
        if self.config.method == "2:4":
            return as_tree({n: two_of_four(m, named[n], n) for n, m in masks.items()})
        if self.prunes_heads:
            values = by_name(state.scores)
            if self.config.scope == "global":  # layers differ in scale (arXiv:1611.06440)
                values = {name: _by_layer_norm(value) for name, value in values.items()}
        else:
            values = {name: jnp.abs(named[name].astype(jnp.float32)) for name in masks}
        # Pruned weights and heads are the smallest.
        values = {name: jnp.where(mask, values[name], -1.0) for name, mask in masks.items()}
        if self.config.scope == "global":
            flat = jnp.concatenate([values[name].reshape(-1) for name in masks])
            remaining = without_smallest(flat[None], self._count(flat.size, number))[0]
            ends = np.cumsum([values[name].size for name in masks])[:-1]
            parts = jnp.split(remaining, ends)
            shapes = [mask.shape for mask in masks.values()]
            masks = {n: p.reshape(s) for n, p, s in zip(masks, parts, shapes, strict=True)}
        else:
            for name, value in values.items():
                rows = value.reshape(_matrices(name, value.shape, self.prunes_heads), -1)
                remaining = without_smallest(rows, self._count(rows.shape[1], number))
                masks[name] = remaining.reshape(value.shape)
        return as_tree(masks)

    def _count(self, size: int, number: Array) -> Array:
        return jnp.asarray(self.schedule.counts(size))[number]

    def metrics(self, state: PruneState, params: dict) -> dict[str, Array]:
        """Returns the share of zeros in the pruned kernels; for heads, also how many are pruned."""
        named = by_name(params)
        zeros, total = jnp.zeros((), jnp.float32), 0
        for name, mask in self._weight_masks(state, named).items():
            count = jnp.logical_not(mask).sum(dtype=jnp.int32).astype(jnp.float32)
            zeros += count * (named[name].size / mask.size)
            total += named[name].size
        metrics = {"prune/sparsity": zeros / total}
        if self.prunes_heads:
            masks = jax.tree.leaves(state.masks)
            metrics["prune/heads"] = sum(jnp.logical_not(m).sum(dtype=jnp.int32) for m in masks)
        return metrics


def make_pruner(config: PruneConfig, steps: int, trainable: dict) -> Pruner | None:
    """Returns the pruner of a run; None if it prunes nothing.

    `trainable` are the trainable parameters, or their shapes. Refuses a pattern that matches none
    of them, and parameters that cannot be pruned in this way.
    """
    if config.method == "none":
        return None
    named = by_name(trainable)
    found = [name for name in named if re.fullmatch(config.parameters, name)]
    if not found:
        raise ConfigError(
            f"prune.parameters={config.parameters!r} matches no full name of a trainable "
            f"parameter. One is: {min(named)}"
        )
    if config.method == "heads":
        found = [name.removesuffix(OUT) for name in found if name.endswith(f"_attention{OUT}")]
        if not found:
            raise ConfigError(
                f"prune.method=heads: prune.parameters={config.parameters!r} matches no output "
                "projection of attention, such as .../self_attention/out/kernel"
            )
    for name in found if config.method != "heads" else ():
        _refuse_unsuitable(config.method, name, named[name].shape)
    total = sum(math.prod(named[name].shape) for name in found if name in named)
    if config.scope == "global" and total > LARGEST:
        raise ConfigError(
            f"prune.scope=global cannot sort {total:,} weights; set it to matrix, or narrow "
            "prune.parameters"
        )
    return Pruner(config, prune_schedule(config, steps), tuple(sorted(found)))


def _refuse_unsuitable(method: str, name: str, shape: tuple[int, ...]) -> None:
    leaf = name.rpartition("/")[2]
    if leaf not in ("kernel", "embedding"):
        raise ConfigError(
            f"prune.parameters matches {name}, which is a vector; only kernels and embeddings can "
            "be pruned; narrow it"
        )
    if method != "2:4":
        return
    if leaf != "kernel":
        raise ConfigError(
            f"prune.method=2:4 prunes the inputs of a matmul, but {name} is a table; narrow "
            "prune.parameters"
        )
    if (inputs := _matrix_shape(name, shape)[1]) % GROUP:
        raise ConfigError(
            f"prune.method=2:4 takes groups of {GROUP} inputs, but {name} has {inputs}; narrow "
            "prune.parameters"
        )


def _matrices(name: str, shape: tuple[int, ...], is_of_heads: bool = False) -> int:
    """Returns how many matrices a parameter holds: one for each layer of the blocks, or expert."""
    if is_of_heads:
        return shape[0]
    return math.prod(shape[: _stacked_axes(name)])


def _stacked_axes(name: str) -> int:
    """Returns how many axes of a parameter come before those of a matrix."""
    if "blocks" not in name.split("/"):
        return 0
    return 2 if is_of_experts(name) else 1


def _matrix_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns a kernel's shape as (matrices, inputs, outputs)."""
    layers = _matrices(name, shape)
    inner = shape[_stacked_axes(name) :]
    axes = 2 if name.endswith(f"_attention{OUT}") else 1  # heads and head size are its inputs
    return layers, math.prod(inner[:axes]), math.prod(inner[axes:])


def without_smallest(values_rn: Array, count: Array) -> Array:
    """Returns False at the `count` smallest values of each row; equal values: the first ones."""
    size = values_rn.shape[1]
    order_rn = jnp.argsort(values_rn, axis=1, stable=True)
    is_left_n = jnp.arange(size) >= count

    def scatter(order_n: Array) -> Array:
        return jnp.zeros(size, bool).at[order_n].set(is_left_n, unique_indices=True)

    return jax.vmap(scatter)(order_rn)


def two_of_four(mask: Array, weights: Array, name: str) -> Array:
    """Returns True at the two largest of each four consecutive inputs of a kernel's outputs.

    A weight that is already pruned is not chosen again.
    """
    layers, inputs, outputs = _matrix_shape(name, weights.shape)
    values = jnp.where(mask, jnp.abs(weights.astype(jnp.float32)), -1.0)
    groups = values.reshape(layers, inputs // GROUP, GROUP, outputs)
    # The rank of each value in its group, from the smallest, by comparing all pairs.
    mine, other = groups[:, :, :, None], groups[:, :, None]
    before = jnp.arange(GROUP)[None, :] < jnp.arange(GROUP)[:, None]
    is_above = (mine > other) | ((mine == other) & before[:, :, None])
    rank = is_above.sum(axis=3, dtype=jnp.int32)
    return (rank >= GROUP - REMAINING).reshape(weights.shape)


def _mask_of_heads(mask_lh: Array, name: str, shape: tuple[int, ...]) -> Array:
    """Returns the mask of a kernel of attention. Keys that several heads share go with the last."""
    if name.endswith(OUT):
        return mask_lh[:, :, None, None]
    groups = shape[2]
    mask_lg = mask_lh.reshape(len(mask_lh), groups, -1).any(axis=2)
    return mask_lg[:, None, :, None]


def _by_layer_norm(scores_lh: Array) -> Array:
    length_l1 = jnp.linalg.norm(scores_lh, axis=1, keepdims=True)
    return scores_lh / jnp.maximum(length_l1, jnp.finfo(jnp.float32).tiny)


def record_head_scores(workdir: Path, step: int, state: PruneState | None) -> None:
    """Writes the importance of every head, and which heads are pruned, to the run directory."""
    if state is None or state.scores is None or not is_primary():
        return
    masks, scores = (by_name(jax.device_get(tree)) for tree in (state.masks, state.scores))
    record = {
        name: {"scores": scores[name].tolist(), "pruned": np.logical_not(masks[name]).tolist()}
        for name in scores
    }
    write_json(workdir / HEAD_SCORES, {"step": step, "modules": record})
