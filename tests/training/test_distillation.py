"""Soft targets: the published formula, its gradient, and a weight between it and the data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import make_batch, make_job
from training.losses import cross_entropy, teacher_divergence
from training.train_state import FrozenInputs, Teacher

pytestmark = pytest.mark.usefixtures("default_compilation")

DESCENT = dict(name="sgd", beta1=0.0, clip_norm=0.0, learning_rate=0.5)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def divergence(student, teacher, weights, temperature):
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return temperature**2 * ((p * np.log(p / q)).sum(axis=-1) * weights).sum()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_divergence_and_its_gradient_are_those_of_the_formula(temperature):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 3, 4, 7)) * 2
    weights = rng.uniform(size=(3, 4))
    cast = functools.partial(jnp.asarray, dtype=jnp.float32)
    found, (slope, of_teacher) = jax.value_and_grad(teacher_divergence, argnums=(0, 1))(
        cast(student), cast(teacher), cast(weights), temperature
    )
    np.testing.assert_allclose(found, divergence(student, teacher, weights, temperature), rtol=1e-5)
    # A step along a random direction, in float64.
    direction, small = rng.normal(size=student.shape), 1e-5
    ends = [
        divergence(student + sign * small * direction, teacher, weights, temperature)
        for sign in (1, -1)
    ]
    expected = (ends[0] - ends[1]) / (2 * small)
    np.testing.assert_allclose((np.asarray(slope) * direction).sum(), expected, rtol=1e-4)
    assert np.all(of_teacher == 0), "a teacher does not learn"


def test_mixup_rows_have_one_teacher_distribution():
    """Mixup gives a row two targets, whose weights add up to the row's."""
    rng = np.random.default_rng(1)
    student, teacher = rng.normal(size=(2, 3, 5)).astype(np.float32)
    weights = np.array([[0.25, 0.75], [1.0, 0.0], [0.0, 0.0]], np.float32)
    found = teacher_divergence(*map(jnp.asarray, (student, teacher, weights)), 2.0)
    expected = divergence(student, teacher, np.array([1.0, 1.0, 0.0]), 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@functools.cache
def teacher_job(objective):
    """A wider model of the same answers, whose dropout must stay off."""
    model = dict(width=24, heads=2, dropout_residual=0.5)
    return make_job(objective, make_batch(objective), model=model)


def student_job(objective, **task):
    job = teacher_job(objective)
    teacher = Teacher(job.model, job.task)
    job = make_job(objective, make_batch(objective), task=task, optimizer=DESCENT, teacher=teacher)
    return job, FrozenInputs({}, teacher_job(objective).start().params)


@pytest.mark.parametrize("objective", ["causal_lm", "classify_text"])
def test_the_loss_is_shared_between_data_and_teacher(objective):
    batch = make_batch(objective)
    job, frozen_inputs = student_job(
        objective, teacher_weight=0.25, teacher_temperature=2.0, label_smoothing=0.1
    )
    teacher = teacher_job(objective)
    state = job.start()
    inputs = [batch["inputs"]]
    named = {"segments_bt": batch["segment_ids"]} if objective == "classify_text" else {}
    student_logits = job.model.apply({"params": state.params}, *inputs, **named)
    teacher_logits = teacher.model.apply({"params": frozen_inputs.teacher}, *inputs, **named)
    targets = batch["labels" if objective == "classify_text" else "targets"]
    hard = cross_entropy(student_logits, targets, jnp.asarray(batch["weights"]), 0.1).loss
    soft = divergence(
        np.asarray(student_logits, np.float64),
        np.asarray(teacher_logits, np.float64),
        batch["weights"],
        2.0,
    )
    count = batch["weights"].sum()
    _, metrics = job.step(state, batch, frozen_inputs)
    np.testing.assert_allclose(metrics["train/teacher_kl"], soft / count, rtol=1e-4)
    expected = (0.75 * hard + 0.25 * soft) / count
    np.testing.assert_allclose(metrics["train/total_loss"], expected, rtol=1e-4)
    plain = cross_entropy(student_logits, targets, jnp.asarray(batch["weights"])).nll
    np.testing.assert_allclose(metrics["train/loss"], plain / count, rtol=1e-4)
    assert soft > 0.1 * hard, "or the teacher had nothing to say"


def test_a_teacher_without_weight_changes_nothing():
    batch = make_batch("classify_text")
    job, frozen_inputs = student_job("classify_text", teacher_weight=0.0)
    plain = make_job("classify_text", batch, optimizer=DESCENT)
    taught, _ = job.step(job.start(), batch, frozen_inputs)
    alone, _ = plain.step(plain.start(), batch)
    for found, expected in zip(
        jax.tree.leaves(taught.params), jax.tree.leaves(alone.params), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(frozen_inputs.teacher))


def test_micro_batches_with_teacher_and_adapters_equal_one_batch():
    batch = make_batch("causal_lm")
    taught = teacher_job("causal_lm")

    def one_step(accumulate):
        job = make_job(
            "causal_lm",
            batch,
            optimizer=DESCENT | dict(accumulate=accumulate),
            finetune=dict(lora_rank=2),
            teacher=Teacher(taught.model, taught.task),
        )
        frozen_inputs = job.frozen_inputs()._replace(teacher=taught.start().params)
        state = job.start()
        before = jax.tree.map(np.array, state.params)
        state, metrics = job.step(state, batch, frozen_inputs)
        return before, state.params, metrics

    before, full_batch, metrics = one_step(1)
    _, parts, parts_metrics = one_step(4)
    for start, found, expected in zip(
        *map(jax.tree.leaves, (before, parts, full_batch)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        assert np.abs(expected - start).max() > 1e-4, "or there was nothing to compare"
    for name, value in metrics.items():
        np.testing.assert_allclose(parts_metrics[name], value, rtol=1e-5, err_msg=name)
