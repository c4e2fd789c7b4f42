"""How much the loss at the last position depends on an input, by the distance between the two."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkpointing.loaded_run import LoadedRun
from experiment.sections import Experiment
from model.stack import Stack
from sweeps.probes.probe import Probe, ProbedRun, real_rows
from training.mesh import put_batch
from training.model_for_task import forward


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): no last position is scored."""
    spec = experiment.task.objective_spec
    if spec.head == "classifier":
        pooling = experiment.model.pooling
        return "" if pooling == "last" else f"model.pooling={pooling} is not last"
    if spec.head == "language_model" and not (spec.has_source or spec.has_prefix):
        return ""
    return f"task.objective={experiment.task.objective} has no last position that is scored"


def compute(probed: ProbedRun) -> dict[str, float]:
    """The norm of the gradient by each embedded input, averaged over rows.

    The rows are those of the eval set that has the longest ones.
    """
    batches = [probed.eval_batch(name=name) for name in probed.data.eval_names]
    batch = max(batches, key=lambda each: last_positions(probed.run, each)[1].max())
    segments_bt, last_b = last_positions(probed.run, batch)
    distance_bt = last_b[:, None] - np.arange(segments_bt.shape[1])
    rows = np.arange(len(last_b))
    counts_bt = (segments_bt == segments_bt[rows, last_b][:, None]) & real_rows(batch)[:, None]
    found = {}
    for time, params in probed.params_by_time().items():
        norms_bt = input_gradient_norms(probed.run, params, batch, last_b)
        distance = 1
        while (chosen_bt := counts_bt & (distance_bt == distance)).any():
            found[f"{time}/{distance}"] = float(norms_bt[chosen_bt].mean(dtype=np.float64))
            distance *= 2
    return found


def last_positions(run: LoadedRun, batch) -> tuple[np.ndarray, np.ndarray]:
    """Segment ids (B, T), 0 for padding, and the position whose output is scored, (B,)."""
    if run.experiment.task.objective_spec.head == "language_model":
        scored_bt = np.asarray(batch["weights"]) > 0
        segments_bt = np.asarray(batch.get("segment_ids", np.ones(scored_bt.shape, np.int32)))
    else:
        shape = jax.eval_shape(lambda: _embedded_shape_of(run, batch)).shape[:2]
        segments_bt = np.asarray(batch.get("segment_ids", np.ones(shape, np.int32)))
        scored_bt = segments_bt != 0
    return segments_bt, scored_bt.shape[1] - 1 - scored_bt[:, ::-1].argmax(axis=1)


def _embedded_shape_of(run: LoadedRun, batch) -> Array:
    """Zeros like the embedded inputs; only for its shape."""
    found = []

    def note(function, args, kwargs, context):
        if isinstance(context.module, Stack) and context.method_name == "__call__":
            found.append(jnp.zeros_like(args[0]))
        return function(*args, **kwargs)

    with nn.intercept_methods(note):
        forward(run.model, run.experiment.task, run.params, batch)
    return found[0]


def input_gradient_norms(run: LoadedRun, params, batch, last_b: np.ndarray) -> np.ndarray:
    """Norms (B, T) of d(negative log-likelihood at `last_b`) / d(embedded input)."""
    task = run.experiment.task
    has_classes = task.objective_spec.head == "classifier"

    def loss(offset_btd: Array, params, batch, last_b) -> Array:
        def add_offset(function, args, kwargs, context):
            if isinstance(context.module, Stack) and context.method_name == "__call__":
                args = (args[0] + offset_btd.astype(args[0].dtype), *args[1:])
            return function(*args, **kwargs)

        with nn.intercept_methods(add_offset):
            logits = forward(run.model, task, params, batch)["logits"].astype(jnp.float32)
        if has_classes:
            logits_bv, target_b = logits, batch["labels"]
        else:
            logits_bv = jnp.take_along_axis(logits, last_b[:, None, None], axis=1)[:, 0]
            target_b = jnp.take_along_axis(batch["targets"], last_b[:, None], axis=1)[:, 0]
        scores_bv = jax.nn.log_softmax(logits_bv)
        # Rows do not depend on each other, so the gradient of the sum has those of all rows.
        return -jnp.take_along_axis(scores_bv, target_b[:, None], axis=1).sum()

    with jax.set_mesh(run.mesh):
        placed = put_batch(batch, run.mesh)
        shape = jax.eval_shape(lambda: _embedded_shape_of(run, placed))
        offset_btd = jnp.zeros(shape.shape, jnp.float32)
        gradient_btd = jax.jit(jax.grad(loss))(offset_btd, params, placed, jnp.asarray(last_b))
        return np.linalg.norm(np.asarray(jax.device_get(gradient_btd), np.float64), axis=-1)


PROBE = Probe(compute, problem, keys=("init/*", "trained/*"))
