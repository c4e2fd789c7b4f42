"""One training step: gradient, anomaly detection, update; and one evaluation step."""

import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from model.config import TransformerConfig
from model.routing import ROUTER
from training.anomalies import (
    detect_anomaly,
    select_if_ok,
    status_metrics,
    update_anomalies,
)
from training.compilation import compiler_options
from training.config import TaskConfig
from training.losses import (
    ABSOLUTE,
    adds_to_cross_entropy,
    calibration_sums,
    term_counts,
    term_sums,
    total_loss,
)
from training.mesh import on_devices
from training.model_for_task import forward
from training.optimizer import ema_update
from training.precision import rounded_kernels, updated
from training.preference_loss import CHOSEN, MARGIN, REJECTED
from training.quantile_loss import COVERAGE, MAE
from training.router_losses import router_counts, router_metrics, router_terms
from training.train_state import NO_FROZEN_INPUTS, FrozenInputs, TrainSpec, TrainState

TIME_USED = "progress/time_used"  # a metric: the used share of the run's time limit


def make_train_step(
    spec: TrainSpec, abstract: TrainState
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Returns the jitted update (state, batch, frozen_inputs, time_used) -> (state, metrics).

    It donates the old state. `abstract` gives the shardings of the state. `time_used` is for runs
    with a time limit: see training/time_limit.py.
    """
    model, task, tuning, teacher = spec.model, spec.task, spec.tuning, spec.teacher
    config, failure, pruner = spec.optimizer_config, spec.failure, spec.pruner
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
        counts = term_counts(task, batch) | router_counts(model.config, batch)
        # Frozen parameters have no gradient, no update and no optimizer state.
        trainable, frozen = tuning.split(state.params)

        def gradients_of(batch, dropout_key):
            """(gradients, total loss, sums of metrics) of a batch or micro-batch."""
            soft_targets = None
            if teacher is not None:  # without dropout and without gradient
                outputs = forward(teacher.model, teacher.task, frozen_inputs.teacher, batch)
                soft_targets = outputs["logits"]
            if (reference := frozen_inputs.reference_of(task)) is not None:
                soft_targets = forward(model, task, reference, batch)["logits"]

            def loss_of(trainable):
                params = tuning.merge(tuning.join(trainable, frozen), frozen_inputs.base)
                if config.gradient_dtype == "bfloat16":
                    params = rounded_kernels(params)
                outputs = forward(model, task, params, batch, dropout_key, features_key)
                loss_sums, metrics = term_sums(task, outputs, batch, soft_targets)
                if ROUTER in outputs:
                    loss_sums |= router_terms(model.config, outputs[ROUTER])
                    metrics |= {name: (x, counts[name]) for name, x in outputs[ROUTER].items()}
                return total_loss(loss_sums, counts), metrics

            (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            if config.rounding != "nearest":  # so that micro-batches also add up in float32
                gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
            return gradients, loss, {name: total for name, (total, _) in metrics.items()}

        gradients, loss, totals = _accumulate(gradients_of, batch, dropout_key, config.accumulate)
        if pruner:  # pruned weights have no gradient
            gradients = pruner.masked(state.prune, gradients)
        grad_norm = optax.tree.norm(gradients)
        status = detect_anomaly(state.anomalies, failure, loss, grad_norm)
        old_opt_state = state.opt_state
        if config.offload:
            old_opt_state = on_devices(old_opt_state, shardings.opt_state)
        updates, opt_state = optimizer.update(gradients, old_opt_state, trainable)
        rounding_key = _key_beside_dropout(spec.seed, ROUNDING, state.step)
        old_trainable, prune = trainable, state.prune
        trainable = updated(config.rounding, trainable, updates, opt_state, rounding_key)
        if pruner:
            is_late = state.anomalies.in_a_row > 0
            prune = pruner.update(
                prune, old_trainable, gradients, trainable, state.step + 1, is_late
            )
            trainable = pruner.masked(prune, trainable)
            opt_state = pruner.masked_master(prune, opt_state)
        params = tuning.join(trainable, frozen)
        ema = state.ema
        if config.ema_decay:
            average = ema_update(tuning.split(ema)[0], trainable, config.ema_decay)
            ema = tuning.join(pruner.masked(prune, average) if pruner else average, frozen)
        if failure.skips:
            old = state.params, old_opt_state, state.ema, state.prune
            new = params, opt_state, ema, prune
            params, opt_state, ema, prune = select_if_ok(status, new, old)
        count = next(iter(counts.values()))  # of the main term: tokens or rows
        metrics = {
            # The same quantity as evaluation's loss; "train/total_loss" is minimised.
            "train/loss": totals["nll"] / jnp.maximum(count, 1),
            # The optimizer counts updates, and a skipped step makes none.
            "optim/learning_rate": jnp.asarray(
                schedule(state.step - state.anomalies.skipped), jnp.float32
            ),
            "optim/grad_norm": grad_norm,
        }
        if time_used is not None:
            metrics[TIME_USED] = time_used
        for name in ("accuracy", ABSOLUTE, MAE, COVERAGE, MARGIN, CHOSEN, REJECTED):
            if name in totals:
                metrics[f"train/{name}"] = totals[name] / jnp.maximum(count, 1)
        if teacher is not None:
            metrics["train/teacher_kl"] = totals["teacher_kl"] / jnp.maximum(count, 1)
        metrics |= router_metrics(totals, counts)
        if teacher is not None or model.config.experts or adds_to_cross_entropy(task):
            metrics["train/total_loss"] = loss
        if pruner:
            metrics |= pruner.metrics(prune, trainable)
        anomalies = update_anomalies(state.anomalies, status, loss)
        metrics |= status_metrics(anomalies, status, loss)
        return TrainState(state.step + 1, params, opt_state, ema, anomalies, prune), metrics

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


CALIBRATION = "calibration"  # the key of `CalibrationSums` among the sums of an evaluation


def make_eval_step(
    model: nn.Module,
    task: TaskConfig,
    *,
    calibration: bool = False,
    more_sums: Callable | None = None,
) -> Callable:
    """Returns the jitted (params, batch[, reference]) -> (sums and counts, outputs).

    The sums and counts are those of metrics. The outputs are class probabilities (B, C) for
    classifiers, scores (B,) of regressors, logits (B, 2, T) of the ends of answers, else the
    likeliest tokens or tags (B, T). `calibration` adds the `CalibrationSums` to the metrics.
    `more_sums` adds further metrics: it is a function (outputs, batch) -> {name: (sum, count)}.
    `reference` are the frozen parameters of objectives that compare with them.
    """
    has_classes = task.objective_spec.head == "classifier"

    def step(params, batch, reference=None):
        outputs, soft_targets = forward(model, task, params, batch), None
        if reference is not None:
            soft_targets = forward(model, task, reference, batch)["logits"]
        _, metrics = term_sums(task, outputs, batch, soft_targets)
        if calibration:
            metrics[CALIBRATION] = calibration_sums(task, outputs, batch)
        if more_sums:
            metrics |= more_sums(outputs, batch)
        if task.objective_spec.head == "forecaster":
            return metrics, outputs["quantiles"]
        logits = outputs["logits"]
        if task.objective_spec.head == "regressor":
            return metrics, logits[..., 0].astype(jnp.float32)
        if task.objective_spec.head == "span":
            return metrics, logits
        if has_classes:
            return metrics, jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        return metrics, jnp.argmax(logits, axis=-1)

    return jax.jit(step, compiler_options=compiler_options())
