"""What determines a run: the spec of its state and step, and the state, created sharded."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from training.anomalies import (
    STOP_ON_NONFINITE,
    AnomalyState,
    init_anomalies,
)
from training.config import FailureConfig, OptimizerConfig, TaskConfig
from training.finetune import TRAIN_ALL, Tuning
from training.mesh import offloaded, optimizer_shardings, parameter_shardings
from training.model_for_task import model_arguments
from training.mup import direction_scales
from training.optimizer import make_optimizer
from training.pruning import Pruner, PruneState
from training.schedules import Schedule


@flax.struct.dataclass
class TrainState:
    """The state of a run, which checkpoints store."""

    step: Array  # steps made so far
    params: dict  # the run's own parameters: see training/finetune.py
    opt_state: optax.OptState
    ema: dict | None  # moving average of the parameters; None: switched off
    anomalies: AnomalyState | None = None  # checkpoints store it as "guard"
    prune: PruneState | None = None  # None: nothing is pruned

    @property
    def eval_params(self) -> dict:
        return self.params if self.ema is None else self.ema


class FrozenInputs(NamedTuple):
    """Parameters of other runs that a step reads. They never change and are never saved."""

    base: dict  # the parameters that adapters change
    teacher: dict
    reference: dict = {}  # noqa: RUF012 (a tuple's default; nothing changes it)

    def reference_of(self, task: TaskConfig) -> dict | None:
        """What the task's objective compares with; None if it needs no reference.

        With adapters, it is their base, so there is only one copy of the parameters.
        """
        return (self.reference or self.base) if task.objective_spec.needs_reference else None


NO_FROZEN_INPUTS = FrozenInputs({}, {})


class Teacher(NamedTuple):
    """A trained model whose outputs are soft targets; its parameters are in `FrozenInputs`."""

    model: nn.Module
    task: TaskConfig


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """Everything that determines the state and the step of a run."""

    model: nn.Module
    task: TaskConfig
    optimizer_config: OptimizerConfig
    schedule: Schedule
    rate_scales: Callable[[dict], dict] | None = None  # factors on the learning rate
    tuning: Tuning = TRAIN_ALL
    teacher: Teacher | None = None
    failure: FailureConfig = STOP_ON_NONFINITE
    seed: int = 0
    pruner: Pruner | None = None

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return self.make_optimizer(self.schedule)

    def make_optimizer(self, schedule: optax.Schedule) -> optax.GradientTransformation:
        """Returns the optimizer with another schedule.

        The optimizer's state does not depend on the schedule.
        """
        return make_optimizer(
            self.optimizer_config,
            schedule,
            self.rate_scales,
            direction_scales(self.model.config),
        )


def abstract_state(
    spec: TrainSpec, batch: Mapping, mesh: Mesh
) -> tuple[TrainState, Callable[[Array], TrainState]]:
    """Returns shapes and shardings of the state, and a jitted function from a key to a state.

    The state is created sharded: no device ever holds more of it than its part.
    """
    config, tuning = spec.optimizer_config, spec.tuning
    init_model = _initializer(spec.model, spec.task, batch)

    def init_params(key):
        return tuning.init_params(init_model(key), key)

    def init(key):
        return init_state(nn.meta.unbox(init_params(key)))

    def init_state(params):
        trainable, _ = tuning.split(params)
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        step = jnp.zeros((), jnp.int32)
        opt_state = spec.optimizer.init(trainable)
        prune = spec.pruner and spec.pruner.init(trainable)
        return TrainState(step, params, opt_state, ema, init_anomalies(spec.failure), prune)

    boxed = jax.eval_shape(init_params, _key_shape())
    shapes = jax.eval_shape(init_state, nn.meta.unbox(boxed))
    params_shardings = parameter_shardings(boxed, mesh)
    trainable, _ = tuning.split(shapes.params)
    trainable_shardings, _ = tuning.split(params_shardings)
    replicated = NamedSharding(mesh, PartitionSpec())
    opt_state_shardings = optimizer_shardings(
        spec.optimizer, shapes.opt_state, trainable, trainable_shardings, mesh
    )
    if config.offload:
        opt_state_shardings = offloaded(shapes.opt_state, opt_state_shardings)
    shardings = TrainState(
        step=replicated,
        params=params_shardings,
        opt_state=opt_state_shardings,
        ema=params_shardings if config.ema_decay else None,
        anomalies=jax.tree.map(lambda _: replicated, shapes.anomalies),
        prune=spec.pruner and spec.pruner.shardings(shapes.prune, trainable_shardings, replicated),
    )
    return _with_shardings(shapes, shardings), jax.jit(init, out_shardings=shardings)


def abstract_params(model: nn.Module, task: TaskConfig, batch: Mapping, mesh: Mesh) -> dict:
    """Returns shapes and shardings of the model's parameters only."""
    boxed = jax.eval_shape(_initializer(model, task, batch), _key_shape())
    return _with_shardings(nn.meta.unbox(boxed), parameter_shardings(boxed, mesh))


def initial_params(
    model: nn.Module, task: TaskConfig, batch: Mapping, mesh: Mesh, seed: int
) -> dict:
    """Returns the parameters that a run with this seed starts from, without adapters."""
    init = _initializer(model, task, batch)
    shardings = parameter_shardings(jax.eval_shape(init, _key_shape()), mesh)
    unboxed = jax.jit(lambda key: nn.meta.unbox(init(key)), out_shardings=shardings)
    return unboxed(jax.random.key(seed))


def _initializer(model: nn.Module, task: TaskConfig, batch: Mapping) -> Callable[[Array], dict]:
    # NumPy zeros, so that nothing compiles or runs here.
    shapes = tuple((name, (1, *x.shape[1:]), np.dtype(x.dtype)) for name, x in batch.items())
    return _cached_initializer(model, task, shapes)


@functools.lru_cache(maxsize=8)
def _cached_initializer(model: nn.Module, task: TaskConfig, shapes: tuple):
    # jax traces one function once. `inline`: the caller's program is as if it were not jitted here.
    example = {name: np.zeros(shape, dtype) for name, shape, dtype in shapes}
    arguments, named = model_arguments(task, example)
    init = lambda key: model.init({"params": key}, *arguments, **named)["params"]  # noqa: E731
    return jax.jit(init, inline=True)


def _key_shape() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _with_shardings(shapes, shardings):
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings,
    )
