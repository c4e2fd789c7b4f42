"""The gradient norm of each layer's parameters before training, on the first training batch."""

import jax
import numpy as np

from experiment.sections import Experiment
from sweeps.probes.probe import Probe, ProbedRun
from training.losses import term_counts, term_sums, total_loss
from training.mesh import put_batch
from training.model_for_task import forward


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): not trained, or not from its seed."""
    if experiment.task.objective_spec.head == "embedder":
        return f"task.objective={experiment.task.objective} is not trained"
    if experiment.run.init_from:
        return "init_from gives the parameters before training, not the seed"
    return ""


def compute(probed: ProbedRun) -> dict[str, float]:
    """The norms by stack and layer, without dropout and without a teacher."""
    run = probed.run
    task = run.experiment.task

    def loss(params, batch):
        outputs = forward(run.model, task, params, batch)
        loss_sums, _ = term_sums(task, outputs, batch)
        return total_loss(loss_sums, term_counts(task, batch))

    with jax.set_mesh(run.mesh):
        batch = put_batch(probed.data.train_batch(0), run.mesh)
        gradients = jax.device_get(jax.jit(jax.grad(loss))(probed.initial_params, batch))
    found = {}
    for stack in ("encoder", "decoder"):
        blocks = gradients["backbone"].get(stack, {}).get("blocks", {})
        # All parameters of blocks are stacked on a leading axis of layers, in every pattern of
        # attention kinds: see model/stack.py.
        squares = [
            np.square(leaf.astype(np.float64)).reshape(len(leaf), -1).sum(axis=1)
            for leaf in jax.tree.leaves(blocks)
        ]
        for layer, norm in enumerate(np.sqrt(sum(squares)).tolist() if squares else ()):
            found[f"{stack}_{layer:02d}"] = norm
    return found


PROBE = Probe(compute, problem, keys=("encoder_*", "decoder_*"))
