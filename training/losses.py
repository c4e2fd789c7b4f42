"""Losses as sums and counts, so that a batch may be split and added up again.

Nothing here divides but `total_loss`, and it divides by counts that `term_counts` knows from
the whole batch before any model has run: gradients of micro-batches simply add.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from training.config import TaskConfig


class CrossEntropy(NamedTuple):
    """Sums over positions, each times its weight."""

    loss: Array  # what is optimised: with label smoothing and z-loss
    nll: Array  # negative log-likelihood of the targets, in nats
    correct: Array  # 1 where no other logit reaches the target's


def cross_entropy(
    logits_btv: Array,
    targets_bt: Array,
    weights_bt: Array,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Cross-entropy in float32 whatever the type of the logits; other leading axes will do.

    Label smoothing e gives the target 1 - e and spreads e evenly over all V entries, the target
    included, as torch.nn.CrossEntropyLoss does. z-loss adds z_loss * log(Z) ** 2.

    Targets and weights may have one more axis than there are places to answer: several answers
    are then right, each as much as its weight says (mixup).
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
    """Loss, negative log-likelihood and whether the answer is right, at every position.

    The gradient is written out because automatic differentiation would keep exp(logits), often
    the largest array of a step, from the forward pass.
    """
    return _per_position_forward(logits_btv, targets_bt, label_smoothing, z_loss)[0]


def _per_position_forward(
    logits_btv: Array, targets_bt: Array, label_smoothing: float, z_loss: float
):
    """The three values, and what the backward pass needs."""
    logits_32 = logits_btv.astype(jnp.float32)
    log_z_bt = jax.nn.logsumexp(logits_32, axis=-1)
    # A masked sum, not a gather: it fuses with its neighbours, and stays local when the
    # vocabulary is split over devices.
    is_target_btv = _is_target(logits_btv, targets_bt)
    target_bt = jnp.where(is_target_btv, logits_32, 0).sum(axis=-1)

    nll_bt = log_z_bt - target_bt
    loss_bt = nll_bt + z_loss * jnp.square(log_z_bt)
    if label_smoothing:
        loss_bt += label_smoothing * (target_bt - logits_32.mean(axis=-1))
    # Exact and cheaper than argmax; a tie is not a right answer, and neither is NaN.
    correct_bt = (is_target_btv | (logits_32 < target_bt[..., None])).all(axis=-1)
    values = (loss_bt, nll_bt, correct_bt.astype(jnp.float32))
    return values, (logits_btv, targets_bt, log_z_bt)


def _per_position_backward(label_smoothing: float, z_loss: float, saved, gradients):
    logits_btv, targets_bt, log_z_bt = saved
    d_loss_bt, d_nll_bt, _ = gradients  # whether an answer is right has no slope
    # The gradients of log_z, of the target's logit and of the mean of the logits.
    d_log_z_bt = d_loss_bt * (1 + 2 * z_loss * log_z_bt) + d_nll_bt
    d_target_bt = d_loss_bt * (label_smoothing - 1) - d_nll_bt
    d_mean_bt = -d_loss_bt * label_smoothing
    share_btv = jnp.exp(logits_btv.astype(jnp.float32) - log_z_bt[..., None])
    d_logits_btv = share_btv * d_log_z_bt[..., None] + jnp.where(
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
    """T^2 KL(teacher || student) of the softmaxes of logits / T, summed over weighted positions.

    The factor keeps the size of the gradient whatever the temperature T (arXiv:1503.02531).
    """
    if weights_bt.ndim == logits_btv.ndim:  # several right answers (mixup), but one of the teacher
        weights_bt = weights_bt.sum(axis=-1)
    divergence_bt = _divergence(logits_btv, jax.lax.stop_gradient(teacher_btv), temperature)
    return (divergence_bt * weights_bt.astype(jnp.float32)).sum()


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _divergence(logits_btv: Array, teacher_btv: Array, temperature: float) -> Array:
    """At every position. The gradient is written out as that of `_per_position` is."""
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


class Term(NamedTuple):
    """One thing the model is asked to predict."""

    output: str  # the key of its logits among the model's outputs
    targets: Array
    weights: Array
    factor: float = 1.0  # how much its mean counts beside the others'


def _terms(task: TaskConfig, batch: Mapping[str, Array]) -> dict[str, Term]:
    match task.objective:
        case "classify_text" | "classify_images":
            terms = {"labels": Term("logits", batch["labels"], batch["weights"])}
            if "token_weights" in batch:  # in training alone
                tokens = batch["targets"], batch["token_weights"]
                terms["hidden_tokens"] = Term("hidden_tokens", *tokens, task.auxiliary_masked_lm)
            return terms
        case "seq2seq" | "causal_lm" | "prefix_lm" | "span_corruption" | "masked_lm":
            terms = {"tokens": Term("logits", batch["targets"], batch["weights"])}
            if task.next_sentence:
                # A row that fills up a batch has text but no weights; a real one has some.
                is_real_b = (batch["weights"] > 0).any(axis=-1)
                terms["next_sentence"] = Term("next_sentence", batch["next_sentence"], is_real_b)
            return terms


def adds_to_cross_entropy(task: TaskConfig) -> bool:
    """Whether more is minimised than the cross-entropy that evaluation reports as its loss."""
    return bool(
        task.label_smoothing or task.z_loss or task.auxiliary_masked_lm or task.next_sentence
    )


def term_counts(task: TaskConfig, batch: Mapping[str, Array]) -> dict[str, Array]:
    """What the sum of each term is to be divided by; needs no model."""
    return {
        name: term.weights.astype(jnp.float32).sum() for name, term in _terms(task, batch).items()
    }


def term_sums(
    task: TaskConfig,
    outputs: Mapping[str, Array],
    batch: Mapping[str, Array],
    teacher_logits: Array | None = None,
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """The loss sum of each term, and every metric as its sum and count.

    A teacher's answers are targets of the main term, beside those of the data.
    """
    counts = term_counts(task, batch)
    sums, metrics = {}, {}
    for name, term in _terms(task, batch).items():
        result = cross_entropy(
            outputs[term.output], term.targets, term.weights, task.label_smoothing, task.z_loss
        )
        sums[name] = term.factor * result.loss
        if teacher_logits is not None and term.output == "logits":
            divergence = teacher_divergence(
                outputs["logits"], teacher_logits, term.weights, task.teacher_temperature
            )
            share = task.teacher_weight
            sums[name] = (1 - share) * sums[name] + share * divergence
            metrics["teacher_kl"] = (divergence, counts[name])
        prefix = "" if term.output == "logits" else f"{name}_"
        metrics[f"{prefix}nll"] = (result.nll, counts[name])
        metrics[f"{prefix}accuracy"] = (result.correct, counts[name])
    return sums, metrics


def total_loss(sums: Mapping[str, Array], counts: Mapping[str, Array]) -> Array:
    """The one number to minimise: the sum of the terms' means. A term without data is 0."""
    means = [
        jnp.where(counts[name] > 0, sums[name] / jnp.where(counts[name] > 0, counts[name], 1), 0)
        for name in sums
    ]
    return sum(means[1:], start=means[0])
