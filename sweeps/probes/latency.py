"""How long one forward pass of a classifier takes on this machine. It is never exactly the same."""

import statistics
import time

import jax

from experiment.schema import ConfigError
from experiment.sections import Experiment
from sweeps.probes.probe import Probe, ProbedRun
from training.compilation import compiler_options
from training.mesh import put_batch
from training.model_for_task import forward

BATCH_SIZES = (1, 64)
WARM_UP, PASSES = 3, 30


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): it is no classifier."""
    if experiment.task.objective_spec.head == "classifier":
        return ""
    return f"task.objective={experiment.task.objective} is no classifier"


def compute(probed: ProbedRun) -> dict[str, float]:
    """The median milliseconds of a pass, for each size of batch."""
    run = probed.run
    if run.mesh.size > 1:
        raise ConfigError("the probe latency needs a single device, and this machine has more")
    rows = probed.eval_batch(max(BATCH_SIZES))

    def logits(params, batch):
        return forward(run.model, run.experiment.task, params, batch)["logits"]

    found = {}
    with jax.set_mesh(run.mesh):
        answer = jax.jit(logits, compiler_options=compiler_options())
        for size in BATCH_SIZES:
            batch = put_batch({name: array[:size] for name, array in rows.items()}, run.mesh)
            seconds = []
            for _ in range(WARM_UP + PASSES):
                begun = time.perf_counter()
                jax.block_until_ready(answer(run.params, batch))
                seconds.append(time.perf_counter() - begun)
            found[f"batch_{size}"] = 1e3 * statistics.median(seconds[WARM_UP:])
    return found


PROBE = Probe(compute, problem, keys=("batch_*",))
