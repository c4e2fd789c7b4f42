"""The state of a run, how it is initialised, and how one training step updates it."""

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

from model.config import TransformerConfig
from training.anomalies import (
    STOP_ON_NONFINITE,
    AnomalyState,
    detect_anomaly,
    init_anomalies,
    select_if_ok,
    status_metrics,
    update_anomalies,
)
from training.compilation import compiler_options
from training.config import FailureConfig, OptimizerConfig, TaskConfig
from training.finetune import TRAIN_ALL, Tuning
from training.losses import adds_to_cross_entropy, term_counts, term_sums, total_loss
from training.mesh import offloaded, on_devices, optimizer_shardings, parameter_shardings
from training.model_for_task import forward, model_arguments
from training.optimizer import ema_update, make_optimizer
from training.precision import updated
from training.schedules import Schedule

TIME_USED = "progress/time_used"  # a metric: the used share of the run's time limit


@flax.struct.dataclass
class TrainState:
    """The state of a run, which checkpoints store."""

    step: Array  # steps made so far
    params: dict  # the run's own parameters: see training/finetune.py
    opt_state: optax.OptState
    ema: dict | None  # moving average of the parameters; None: switched off
    anomalies: AnomalyState | None = None  # checkpoints store it as "guard"

    @property
    def eval_params(self) -> dict:
        return self.params if self.ema is None else self.ema


class FrozenInputs(NamedTuple):
    """Parameters of other runs that a step reads. They never change and are never saved."""

    base: dict  # the parameters that adapters change
    teacher: dict


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

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return self.make_optimizer(self.schedule)

    def make_optimizer(self, schedule: optax.Schedule) -> optax.GradientTransformation:
        """Returns the optimizer with another schedule.

        The optimizer's state does not depend on the schedule.
        """
        return make_optimizer(self.optimizer_config, schedule, self.rate_scales)


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
        params = nn.meta.unbox(init_params(key))
        trainable, _ = tuning.split(params)
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        step = jnp.zeros((), jnp.int32)
        opt_state = spec.optimizer.init(trainable)
        return TrainState(step, params, opt_state, ema, init_anomalies(spec.failure))

    shapes = jax.eval_shape(init, _key_shape())
    params_shardings = parameter_shardings(jax.eval_shape(init_params, _key_shape()), mesh)
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
    )
    return _with_shardings(shapes, shardings), jax.jit(init, out_shardings=shardings)


def abstract_params(model: nn.Module, task: TaskConfig, batch: Mapping, mesh: Mesh) -> dict:
    """Returns shapes and shardings of the model's parameters only."""
    boxed = jax.eval_shape(_initializer(model, task, batch), _key_shape())
    return _with_shardings(nn.meta.unbox(boxed), parameter_shardings(boxed, mesh))


def _initializer(model: nn.Module, task: TaskConfig, batch: Mapping) -> Callable[[Array], dict]:
    # NumPy zeros, so that nothing compiles or runs here.
    example = {name: np.zeros((1, *x.shape[1:]), x.dtype) for name, x in batch.items()}
    arguments, named = model_arguments(task, example)
    return lambda key: model.init({"params": key}, *arguments, **named)["params"]


def _key_shape() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _with_shardings(shapes, shardings):
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def make_train_step(
    spec: TrainSpec, abstract: TrainState
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Returns the jitted update (state, batch, frozen_inputs, time_used) -> (state, metrics).

    It donates the old state. `abstract` gives the shardings of the state. `time_used` is for runs
    with a time limit: see training/time_limit.py.
    """
    model, task, tuning, teacher = spec.model, spec.task, spec.tuning, spec.teacher
    config, failure = spec.optimizer_config, spec.failure
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)

    def step(
        state: TrainState,
        batch: Mapping,
        frozen_inputs: FrozenInputs = NO_FROZEN_INPUTS,
        time_used: Array | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        schedule, optimizer = spec.schedule, spec.optimizer
        if time_used is not None:
            # One entry per device; only those of the first process are not 0.
            time_used = jnp.max(time_used)
            schedule = functools.partial(schedule, time_used=time_used)
            optimizer = spec.make_optimizer(schedule)
        # Dropout is a function of (seed, step), so a resumed run draws the same masks.
        dropout_key = jax.random.fold_in(jax.random.key(spec.seed), state.step)
        features_key = _features_key(model.config, spec.seed, state.step)
        # The counts of the whole batch are known before the model runs. Every micro-batch divides
        # by them, so the gradients of micro-batches add up to that of the whole batch.
        counts = term_counts(task, batch)
        # Frozen parameters have no gradient, no update and no optimizer state.
        trainable, frozen = tuning.split(state.params)

        def gradients_of(batch, dropout_key):
            """(gradients, total loss, sums of metrics) of a batch or micro-batch."""
            soft_targets = None
            if teacher is not None:  # without dropout and without gradient
                outputs = forward(teacher.model, teacher.task, frozen_inputs.teacher, batch)
                soft_targets = outputs["logits"]

            def loss_of(trainable):
                params = tuning.merge(tuning.join(trainable, frozen), frozen_inputs.base)
                outputs = forward(model, task, params, batch, dropout_key, features_key)
                loss_sums, metrics = term_sums(task, outputs, batch, soft_targets)
                return total_loss(loss_sums, counts), metrics

            (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            if config.rounding != "nearest":  # so that micro-batches also add up in float32
                gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
            return gradients, loss, {name: total for name, (total, _) in metrics.items()}

        gradients, loss, totals = _accumulate(gradients_of, batch, dropout_key, config.accumulate)
        grad_norm = optax.tree.norm(gradients)
        status = detect_anomaly(state.anomalies, failure, loss, grad_norm)
        old_opt_state = state.opt_state
        if config.offload:
            old_opt_state = on_devices(old_opt_state, shardings.opt_state)
        updates, opt_state = optimizer.update(gradients, old_opt_state, trainable)
        rounding_key = _key_beside_dropout(spec.seed, ROUNDING, state.step)
        trainable = updated(config.rounding, trainable, updates, opt_state, rounding_key)
        params = tuning.join(trainable, frozen)
        ema = state.ema
        if config.ema_decay:
            ema = tuning.join(ema_update(tuning.split(ema)[0], trainable, config.ema_decay), frozen)
        if failure.skips:
            old = state.params, old_opt_state, state.ema
            params, opt_state, ema = select_if_ok(status, (params, opt_state, ema), old)
        count = next(iter(counts.values()))  # of the main term: tokens or rows
        metrics = {
            # The same quantity as evaluation's loss; "train/total_loss" is minimised.
            "train/loss": totals["nll"] / jnp.maximum(count, 1),
            "train/accuracy": totals["accuracy"] / jnp.maximum(count, 1),
            # The optimizer counts updates, and a skipped step makes none.
            "optim/learning_rate": jnp.asarray(
                schedule(state.step - state.anomalies.skipped), jnp.float32
            ),
            "optim/grad_norm": grad_norm,
        }
        if time_used is not None:
            metrics[TIME_USED] = time_used
        if teacher is not None:
            metrics["train/teacher_kl"] = totals["teacher_kl"] / jnp.maximum(count, 1)
        if teacher is not None or adds_to_cross_entropy(task):
            metrics["train/total_loss"] = loss
        anomalies = update_anomalies(state.anomalies, status, loss)
        metrics |= status_metrics(anomalies, status, loss)
        return TrainState(state.step + 1, params, opt_state, ema, anomalies), metrics

    return jax.jit(
        step,
        donate_argnums=0,
        out_shardings=(shardings, None),
        compiler_options=compiler_options(),
    )


def _accumulate(gradients_of: Callable, batch: Mapping, dropout_key: Array, parts: int):
    """Sums `gradients_of(micro_batch, key)` over `parts` micro-batches, one at a time.

    Only the activations of one micro-batch are alive at any time.
    """
    if parts == 1:
        return gradients_of(batch, dropout_key)

    def micro_batch(index):
        # Every parts-th row, so that each device contributes rows it already has.
        return {
            name: x.reshape(x.shape[0] // parts, parts, *x.shape[1:])[:, index]
            for name, x in batch.items()
        }

    def add(total, index):
        new = gradients_of(micro_batch(index), jax.random.fold_in(dropout_key, index))
        return jax.tree.map(jnp.add, total, new), None

    shapes = jax.eval_shape(gradients_of, micro_batch(0), dropout_key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, jnp.arange(parts))[0]


def _features_key(config: TransformerConfig, seed: int, step: Array) -> Array | None:
    """Returns the key of a step's random features. None: use the fixed features of evaluation."""
    if not config.draws_features:
        return None
    return _key_beside_dropout(seed, FEATURES, step // config.attention_redraw)


# No step has these numbers, so these keys are never dropout keys.
FEATURES, ROUNDING = np.uint32(2**32 - 1), np.uint32(2**32 - 2)


def _key_beside_dropout(seed: int, purpose: np.uint32, number: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), number)


def make_eval_step(model: nn.Module, task: TaskConfig) -> Callable:
    """Returns the jitted (params, batch) -> (metrics as sums and counts, outputs).

    The outputs are class probabilities (B, C) for classifiers, else the likeliest tokens (B, T).
    """
    has_classes = task.objective_spec.head == "classifier"

    def step(params, batch):
        outputs = forward(model, task, params, batch)
        _, metrics = term_sums(task, outputs, batch)
        logits = outputs["logits"]
        if has_classes:
            return metrics, jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        return metrics, jnp.argmax(logits, axis=-1)

    return jax.jit(step, compiler_options=compiler_options())
