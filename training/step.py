"""The state of a run, how it is born, and how one step changes it."""

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
from model.kinds import pattern_of
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
from training.optimizer import ema_update
from training.precision import updated
from training.schedules import Schedule

TIME_USED = "progress/time_used"  # the metric: a share of the run's time limit


@flax.struct.dataclass
class TrainState:
    step: Array  # updates made so far
    params: dict  # the run's own: see training/finetune.py
    opt_state: optax.OptState
    ema: dict | None  # moving average of the parameters, None where it is switched off
    anomalies: AnomalyState | None = None  # checkpoints store it as "guard"

    @property
    def eval_params(self) -> dict:
        return self.params if self.ema is None else self.ema


class FrozenInputs(NamedTuple):
    """Parameters of other runs that a step reads. They never change and are never saved."""

    base: dict  # what adapters adapt
    teacher: dict


NO_FROZEN_INPUTS = FrozenInputs({}, {})


class Teacher(NamedTuple):
    """A trained model whose answers are soft targets; its parameters are in `FrozenInputs`."""

    model: nn.Module
    task: TaskConfig


def abstract_state(
    model: nn.Module,
    task: TaskConfig,
    optimizer: optax.GradientTransformation,
    config: OptimizerConfig,
    batch: Mapping,
    mesh: Mesh,
    tuning: Tuning = TRAIN_ALL,
    failure: FailureConfig = STOP_ON_NONFINITE,
) -> tuple[TrainState, Callable[[Array], TrainState]]:
    """Shapes and shardings of the state, and the function that makes one from a random key.

    The state is born sharded: no device ever holds more of it than its part.
    """
    init_model = _initializer(model, task, batch)

    def init_params(key):
        return tuning.init_params(init_model(key), key)

    def init(key):
        params = nn.meta.unbox(init_params(key))
        trainable, _ = tuning.split(params)
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        step = jnp.zeros((), jnp.int32)
        return TrainState(step, params, optimizer.init(trainable), ema, init_anomalies(failure))

    shapes = jax.eval_shape(init, _key_shape())
    params_at = parameter_shardings(jax.eval_shape(init_params, _key_shape()), mesh)
    trainable, trainable_at = tuning.split(shapes.params)[0], tuning.split(params_at)[0]
    everywhere = NamedSharding(mesh, PartitionSpec())
    opt_state_at = optimizer_shardings(optimizer, shapes.opt_state, trainable, trainable_at, mesh)
    if config.offload:
        opt_state_at = offloaded(shapes.opt_state, opt_state_at)
    shardings = TrainState(
        step=everywhere,
        params=params_at,
        opt_state=opt_state_at,
        ema=params_at if config.ema_decay else None,
        anomalies=jax.tree.map(lambda _: everywhere, shapes.anomalies),
    )
    return _placed(shapes, shardings), jax.jit(init, out_shardings=shardings)


def abstract_params(model: nn.Module, task: TaskConfig, batch: Mapping, mesh: Mesh) -> dict:
    """Shapes and shardings of the model's parameters alone."""
    boxed = jax.eval_shape(_initializer(model, task, batch), _key_shape())
    return _placed(nn.meta.unbox(boxed), parameter_shardings(boxed, mesh))


def _initializer(model: nn.Module, task: TaskConfig, batch: Mapping) -> Callable[[Array], dict]:
    # Zeros of NumPy: nothing here compiles or runs.
    example = {name: np.zeros((1, *x.shape[1:]), x.dtype) for name, x in batch.items()}
    arguments, named = model_arguments(task, example)
    return lambda key: model.init({"params": key}, *arguments, **named)["params"]


def _key_shape() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _placed(shapes, shardings):
    return jax.tree.map(
        lambda shape, at: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=at),
        shapes,
        shardings,
    )


def make_train_step(
    model: nn.Module,
    task: TaskConfig,
    optimizer: optax.GradientTransformation,
    config: OptimizerConfig,
    schedule: Schedule,
    seed: int,
    abstract: TrainState,
    tuning: Tuning = TRAIN_ALL,
    teacher: Teacher | None = None,
    failure: FailureConfig = STOP_ON_NONFINITE,
    with_schedule: Callable[[optax.Schedule], optax.GradientTransformation] | None = None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """The jitted update (state, batch, frozen_inputs, time_used) -> (state, metrics as arrays).

    It gives up the old state's memory. `time_used` is for a run with a time limit, see
    training/time_limit.py; it needs `with_schedule`, which makes the optimizer with another
    schedule.
    """

    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)

    def loss_and_gradients(
        trainable, frozen, frozen_inputs, batch, counts, dropout_key, features_key
    ):
        soft = None
        if teacher is not None:  # no dropout for it, and no gradient
            soft = forward(teacher.model, teacher.task, frozen_inputs.teacher, batch)["logits"]

        def loss_of(trainable):
            params = tuning.merge(tuning.join(trainable, frozen), frozen_inputs.base)
            outputs = forward(model, task, params, batch, dropout_key, features_key)
            sums, metrics = term_sums(task, outputs, batch, soft)
            return total_loss(sums, counts), metrics

        (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        if config.rounding != "nearest":  # nor are those of micro-batches added up in bfloat16
            gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        return gradients, loss, {name: total for name, (total, _) in metrics.items()}

    def accumulated(trainable, frozen, frozen_inputs, batch, counts, dropout_key, features_key):
        """The same sums, one micro-batch after another: only one's activations are alive."""
        parts = config.accumulate
        if parts == 1:
            return loss_and_gradients(
                trainable, frozen, frozen_inputs, batch, counts, dropout_key, features_key
            )

        def micro_batch(index):
            # Every parts-th row, so that each device contributes rows it already has.
            return {
                name: x.reshape(x.shape[0] // parts, parts, *x.shape[1:])[:, index]
                for name, x in batch.items()
            }

        def add(total, index):
            # All micro-batches see the same features, as they would in one batch.
            keys = jax.random.fold_in(dropout_key, index), features_key
            new = loss_and_gradients(
                trainable, frozen, frozen_inputs, micro_batch(index), counts, *keys
            )
            return jax.tree.map(jnp.add, total, new), None

        shapes = jax.eval_shape(
            loss_and_gradients,
            *(trainable, frozen, frozen_inputs, micro_batch(0), counts, dropout_key, features_key),
        )
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, zeros, jnp.arange(parts))[0]

    def step(
        state: TrainState,
        batch: Mapping,
        frozen_inputs: FrozenInputs = NO_FROZEN_INPUTS,
        time_used: Array | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        schedule_now, optimizer_now = schedule, optimizer
        if time_used is not None:
            # An entry for each device, of which one process's tell the time.
            time_used = jnp.max(time_used)
            schedule_now = functools.partial(schedule, time_used=time_used)
            # Of the same state: the schedule has no part in that.
            optimizer_now = with_schedule(schedule_now)
        # Folding in the step makes dropout a function of (seed, step): resuming repeats nothing.
        dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)
        features_key = _features_key(model.config, seed, state.step)
        # The counts of the whole batch are known before the model runs, so every micro-batch
        # divides by them and the parts simply add up to the gradient of the whole.
        counts = term_counts(task, batch)
        # What is frozen has no gradient, no update and nothing in the optimizer's state.
        trainable, frozen = tuning.split(state.params)
        keys = dropout_key, features_key
        gradients, loss, sums = accumulated(trainable, frozen, frozen_inputs, batch, counts, *keys)
        grad_norm = optax.tree.norm(gradients)
        status = detect_anomaly(state.anomalies, failure, loss, grad_norm)
        before = state.opt_state
        if config.offload:
            before = on_devices(before, shardings.opt_state)
        updates, opt_state = optimizer_now.update(gradients, before, trainable)
        rounding_key = _key_beside_dropout(seed, ROUNDING, state.step)
        trainable = updated(config.rounding, trainable, updates, opt_state, rounding_key)
        params = tuning.join(trainable, frozen)
        ema = state.ema
        if config.ema_decay:
            ema = tuning.join(ema_update(tuning.split(ema)[0], trainable, config.ema_decay), frozen)
        if failure.skips:
            old = state.params, before, state.ema
            params, opt_state, ema = select_if_ok(status, (params, opt_state, ema), old)
        count = next(iter(counts.values()))  # of the main term: tokens or rows
        metrics = {
            # What evaluation calls its loss; the rest of what is minimised is told beside it.
            "train/loss": sums["nll"] / jnp.maximum(count, 1),
            "train/accuracy": sums["accuracy"] / jnp.maximum(count, 1),
            # The optimizer counts the updates, of which a step that is skipped makes none.
            "optim/learning_rate": jnp.asarray(
                schedule_now(state.step - state.anomalies.skipped), jnp.float32
            ),
            "optim/grad_norm": grad_norm,
        }
        if time_used is not None:
            metrics[TIME_USED] = time_used
        if teacher is not None:
            metrics["train/teacher_kl"] = sums["teacher_kl"] / jnp.maximum(count, 1)
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


def _features_key(config: TransformerConfig, seed: int, step: Array) -> Array | None:
    """The key of a step's random features; None: the fixed features of evaluation."""
    if "performer" not in pattern_of(config.attention) or not config.attention_redraw:
        return None
    return _key_beside_dropout(seed, FEATURES, step // config.attention_redraw)


# No step has these numbers, so that no dropout is drawn from the same key.
FEATURES, ROUNDING = np.uint32(2**32 - 1), np.uint32(2**32 - 2)


def _key_beside_dropout(seed: int, purpose: np.uint32, number: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), number)


def make_eval_step(model: nn.Module, task: TaskConfig) -> Callable:
    """Metrics of a batch as sums and counts, and what the model answers.

    That is each class's probability where there are classes, else the likeliest token.
    """
    has_classes = task.objective in ("classify_text", "classify_images")

    def step(params, batch):
        outputs = forward(model, task, params, batch)
        _, metrics = term_sums(task, outputs, batch)
        logits = outputs["logits"]
        if has_classes:
            return metrics, jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        return metrics, jnp.argmax(logits, axis=-1)

    return jax.jit(step, compiler_options=compiler_options())
