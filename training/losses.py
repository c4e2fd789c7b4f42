"""Losses as sums and counts, so that the parts of a split batch add up.

Only `total_loss` divides, and by the counts of the whole batch (`term_counts`), which are known
before the model runs. So gradients of micro-batches add up to the gradient of the batch.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from training.config import TaskConfig
from training.preference_loss import preference_counts, preference_sums
from training.quantile_loss import quantile_counts, quantile_sums


def squared_error(outputs_b: Array, targets_b: Array, weights_b: Array) -> tuple[Array, Array]:
    """Weighted sums of the squared and of the absolute error, in float32."""
    errors_b = outputs_b.astype(jnp.float32) - targets_b.astype(jnp.float32)
    weights_b = weights_b.astype(jnp.float32)
    return (jnp.square(errors_b) * weights_b).sum(), (jnp.abs(errors_b) * weights_b).sum()


class CrossEntropy(NamedTuple):
    """Weighted sums over positions."""

    loss: Array  # to be minimised: with label smoothing and z-loss
    nll: Array  # negative log-likelihood of the targets, in nats
    correct: Array  # 1 where the target's logit is greater than all others


def cross_entropy(
    logits_btv: Array,
    targets_bt: Array,
    weights_bt: Array,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Cross-entropy in float32, whatever the type of the logits. Leading axes are arbitrary.

    Label smoothing e gives the target 1 - e and spreads e evenly over all V entries, the target
    included, as torch.nn.CrossEntropyLoss does. z-loss adds z_loss * log(Z) ** 2.

    Targets and weights may have one more axis than the positions: then each position has several
    targets with a weight each (mixup).
    """
    if targets_bt.ndim == logits_btv.ndim:
        shape = (*targets_bt.shape, logits_btv.shape[-1])
        logits_btv = jnp.broadcast_to(logits_btv[..., None, :], shape)
    values = _per_position(logits_btv, targets_bt, label_smoothing, z_loss)
    weights_bt = weights_bt.astype(jnp.float32)
    return CrossEntropy(*((value_bt * weights_bt).sum() for value_bt in values))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _per_position(
    logits_btv: Array, targets_bt: Array, label_smoothing: float, z_loss: float
) -> tuple[Array, Array, Array]:
    """Loss, negative log-likelihood and correctness at every position.

    The gradient is written by hand: automatic differentiation would keep exp(logits), often the
    largest array of a step, for the backward pass.
    """
    return _per_position_forward(logits_btv, targets_bt, label_smoothing, z_loss)[0]


def _per_position_forward(
    logits_btv: Array, targets_bt: Array, label_smoothing: float, z_loss: float
):
    """The three values, and what the backward pass needs."""
    logits_32 = logits_btv.astype(jnp.float32)
    log_z_bt = jax.nn.logsumexp(logits_32, axis=-1)
    # A masked sum, not a gather: it fuses, and stays local on a sharded vocabulary.
    is_target_btv = _is_target(logits_btv, targets_bt)
    target_bt = jnp.where(is_target_btv, logits_32, 0).sum(axis=-1)

    nll_bt = log_z_bt - target_bt
    loss_bt = nll_bt + z_loss * jnp.square(log_z_bt)
    if label_smoothing:
        loss_bt += label_smoothing * (target_bt - logits_32.mean(axis=-1))
    # Cheaper than argmax. Ties and NaN count as wrong.
    correct_bt = (is_target_btv | (logits_32 < target_bt[..., None])).all(axis=-1)
    values = (loss_bt, nll_bt, correct_bt.astype(jnp.float32))
    return values, (logits_btv, targets_bt, log_z_bt)


def _per_position_backward(label_smoothing: float, z_loss: float, saved, gradients):
    logits_btv, targets_bt, log_z_bt = saved
    d_loss_bt, d_nll_bt, _ = gradients  # correctness has no gradient
    # The gradients of log_z, of the target's logit and of the mean of the logits.
    d_log_z_bt = d_loss_bt * (1 + 2 * z_loss * log_z_bt) + d_nll_bt
    d_target_bt = d_loss_bt * (label_smoothing - 1) - d_nll_bt
    d_mean_bt = -d_loss_bt * label_smoothing
    probs_btv = jnp.exp(logits_btv.astype(jnp.float32) - log_z_bt[..., None])
    d_logits_btv = probs_btv * d_log_z_bt[..., None] + jnp.where(
        _is_target(logits_btv, targets_bt), d_target_bt[..., None], 0.0
    )
    if label_smoothing:
        d_logits_btv += d_mean_bt[..., None] / logits_btv.shape[-1]
    return d_logits_btv.astype(logits_btv.dtype), None


_per_position.defvjp(_per_position_forward, _per_position_backward)


def _is_target(logits_btv: Array, targets_bt: Array) -> Array:
    vocabulary_v = jnp.arange(logits_btv.shape[-1], dtype=targets_bt.dtype)
    return vocabulary_v == targets_bt[..., None]


def teacher_divergence(
    logits_btv: Array, teacher_btv: Array, weights_bt: Array, temperature: float
) -> Array:
    """T^2 KL(teacher || student) of the softmaxes of logits / T, as a weighted sum over positions.

    The factor T^2 keeps the scale of the gradient for any temperature T (arXiv:1503.02531).
    """
    if weights_bt.ndim == logits_btv.ndim:  # several targets per position (mixup)
        weights_bt = weights_bt.sum(axis=-1)
    divergence_bt = _divergence(logits_btv, jax.lax.stop_gradient(teacher_btv), temperature)
    return (divergence_bt * weights_bt.astype(jnp.float32)).sum()


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _divergence(logits_btv: Array, teacher_btv: Array, temperature: float) -> Array:
    """The divergence at every position. The gradient is written by hand, as above."""
    log_p_btv = jax.nn.log_softmax(teacher_btv.astype(jnp.float32) / temperature)
    log_q_btv = jax.nn.log_softmax(logits_btv.astype(jnp.float32) / temperature)
    return temperature**2 * (jnp.exp(log_p_btv) * (log_p_btv - log_q_btv)).sum(axis=-1)


def _divergence_forward(logits_btv: Array, teacher_btv: Array, temperature: float):
    return _divergence(logits_btv, teacher_btv, temperature), (logits_btv, teacher_btv)


def _divergence_backward(temperature: float, saved, d_divergence_bt: Array):
    logits_btv, teacher_btv = saved
    p_btv = jax.nn.softmax(teacher_btv.astype(jnp.float32) / temperature)
    q_btv = jax.nn.softmax(logits_btv.astype(jnp.float32) / temperature)
    d_logits_btv = temperature * (q_btv - p_btv) * d_divergence_bt[..., None]
    return d_logits_btv.astype(logits_btv.dtype), jnp.zeros_like(teacher_btv)


_divergence.defvjp(_divergence_forward, _divergence_backward)


class CalibrationSums(NamedTuple):
    """Weighted sums over the positions of each bin of the top probability, (Z,).

    The bins have equal widths. A bin includes its upper edge, and the first one also 0.
    """

    count: Array
    confidence: Array  # the top probability
    correct: Array  # as `CrossEntropy.correct`


CALIBRATION_BINS = 15


def calibration_sums(
    task: TaskConfig, outputs: Mapping[str, Array], batch: Mapping[str, Array]
) -> CalibrationSums:
    """What the expected calibration error of the main term is computed from."""
    term = _terms(task, batch)[task.terms[0].name]
    logits_btv = outputs[term.output].astype(jnp.float32)
    log_z_bt = jax.nn.logsumexp(logits_btv, axis=-1)
    confidence_bt = jnp.exp(logits_btv.max(axis=-1) - log_z_bt)
    _, _, correct_bt = _per_position(logits_btv, term.targets, 0.0, 0.0)
    bins_bt = jnp.ceil(confidence_bt * CALIBRATION_BINS).clip(1, CALIBRATION_BINS) - 1
    # A masked sum, not a scatter: it fuses, and stays local on sharded rows.
    is_bin_btz = bins_bt[..., None] == jnp.arange(CALIBRATION_BINS, dtype=jnp.float32)
    weights_btz = jnp.where(is_bin_btz, term.weights.astype(jnp.float32)[..., None], 0)
    axes = tuple(range(confidence_bt.ndim))
    return CalibrationSums(
        weights_btz.sum(axes),
        (weights_btz * confidence_bt[..., None]).sum(axes),
        (weights_btz * correct_bt[..., None]).sum(axes),
    )


ABSOLUTE = "absolute_error"  # the metric of regression beside its loss, the squared error


class Term(NamedTuple):
    """One term of the loss."""

    output: str  # the key of its logits among the model's outputs
    targets: Array
    weights: Array
    factor: float = 1.0  # multiplies its mean


def _terms(task: TaskConfig, batch: Mapping[str, Array]) -> dict[str, Term]:
    """The terms that the objective declares."""
    terms = {}
    for term in task.terms:
        if term.training_only and term.weights not in batch:
            continue
        targets, weights = batch[term.targets], batch[term.weights]
        if weights.ndim > targets.ndim:
            # All weights of a row that only pads the batch are 0.
            weights = (weights > 0).any(axis=-1)
        factor = float(getattr(task, term.key)) if term.key else 1.0
        terms[term.name] = Term(term.output, targets, weights, factor)
    return terms


def adds_to_cross_entropy(task: TaskConfig) -> bool:
    """Whether the loss that is minimised has more terms than the loss that evaluation reports."""
    is_scaled = task.objective_spec.head == "forecaster"
    return bool(task.label_smoothing or task.z_loss or len(task.terms) > 1 or is_scaled)


def term_counts(task: TaskConfig, batch: Mapping[str, Array]) -> dict[str, Array]:
    """The sum of weights of each term: what `total_loss` divides by."""
    if task.objective_spec.needs_reference:
        return preference_counts(batch)
    if task.objective_spec.head == "forecaster":
        return quantile_counts(batch)
    return {
        name: term.weights.astype(jnp.float32).sum() for name, term in _terms(task, batch).items()
    }


def term_sums(
    task: TaskConfig,
    outputs: Mapping[str, Array],
    batch: Mapping[str, Array],
    teacher_logits: Array | None = None,
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Returns the loss sum of each term, and every metric as (sum, count).

    A teacher's logits are additional targets of the main term, or the reference of preferences.
    """
    if task.objective_spec.needs_reference:
        return preference_sums(task, outputs["logits"], teacher_logits, batch)
    if task.objective_spec.head == "forecaster":
        return quantile_sums(task, outputs, batch)
    counts = term_counts(task, batch)
    loss_sums, metrics = {}, {}
    if task.terms[0].is_squared_error:
        ((name, term),) = _terms(task, batch).items()
        squared, absolute = squared_error(outputs[term.output][..., 0], term.targets, term.weights)
        # Evaluation reports "nll" as the loss.
        metrics = {"nll": (squared, counts[name]), ABSOLUTE: (absolute, counts[name])}
        return {name: squared}, metrics
    for name, term in _terms(task, batch).items():
        result = cross_entropy(
            outputs[term.output], term.targets, term.weights, task.label_smoothing, task.z_loss
        )
        loss_sums[name] = term.factor * result.loss
        is_main = name == task.terms[0].name
        if teacher_logits is not None and is_main:
            divergence = teacher_divergence(
                outputs["logits"], teacher_logits, term.weights, task.teacher_temperature
            )
            share = task.teacher_weight
            loss_sums[name] = (1 - share) * loss_sums[name] + share * divergence
            metrics["teacher_kl"] = (divergence, counts[name])
        prefix = "" if is_main else f"{name}_"
        metrics[f"{prefix}nll"] = (result.nll, counts[name])
        metrics[f"{prefix}accuracy"] = (result.correct, counts[name])
    return loss_sums, metrics


def total_loss(loss_sums: Mapping[str, Array], counts: Mapping[str, Array]) -> Array:
    """Returns the loss to minimise: the sum of the terms' means. A term without data is 0."""
    means = [
        jnp.where(counts[name] > 0, total / jnp.where(counts[name] > 0, counts[name], 1), 0)
        for name, total in loss_sums.items()
    ]
    return sum(means[1:], start=means[0])
