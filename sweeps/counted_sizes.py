"""Parameters, FLOPs and metrics of an experiment, counted from its config and data.

Nothing is compiled. Data is opened once for all experiments that share it.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from evaluation import eval_sets
from evaluation.evaluator import metric_names
from experiment.schema import ConfigError, did_you_mean
from experiment.sections import Experiment
from input_pipeline import pipeline
from model.config import TransformerConfig
from sweeps.cell_results import TRAINING_METRICS
from sweeps.metric_patterns import is_measured
from training.config import MeshConfig
from training.flops import row_flops
from training.infer_sizes import fit_to_data
from training.main_metric import main_metric
from training.mesh import make_mesh
from training.model_for_task import make_model
from training.train_state import abstract_params

COUNTED_BATCHES = 16  # with buckets, FLOPs are the mean over this many batches


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large a model is and what it costs to train."""

    parameters: int
    step_flops: int  # of one training step, without a teacher


class SizeCounter:
    """Counts sizes of experiments. It keeps their data open."""

    def __init__(self):
        self._opened: dict[str, pipeline.Data] = {}

    def data(self, experiment: Experiment) -> pipeline.Data:
        """The data of an experiment; opened once if several share it."""
        key = json.dumps(data_key(experiment))
        if key not in self._opened:
            self._opened[key] = pipeline.load(
                experiment.data,
                objective=experiment.task.objective,
                masking=experiment.masking,
                seed=experiment.run.seed,
            )
        return self._opened[key]

    def sizes(self, experiment: Experiment) -> Sizes:
        """Counts parameters from the shapes that initialization gives, and FLOPs of a step."""
        data, task = self.data(experiment), experiment.task
        model = fit_to_data(experiment.model, data, experiment.run.init_from)
        batches = self._batches(experiment)
        params = abstract_params(make_model(model, task), task, batches[0], _one_device())
        return Sizes(
            parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
            step_flops=self._step_flops(experiment, model, batches),
        )

    def _batches(self, experiment: Experiment) -> list[Mapping[str, np.ndarray]]:
        data, settings = self.data(experiment), experiment.data
        has_buckets = bool(settings.buckets or settings.bucket_count)
        return [data.train_batch(n) for n in range(COUNTED_BATCHES if has_buckets else 1)]

    def _step_flops(
        self, experiment: Experiment, model: TransformerConfig, batches: Sequence[Mapping]
    ) -> int:
        rows, task = experiment.data.batch_size, experiment.task
        return round(rows * np.mean([row_flops(model, task, batch) for batch in batches]))

    def metrics(self, experiment: Experiment) -> list[str]:
        """The names of all scores that the evaluation of an experiment produces."""
        data = self.data(experiment)
        sets = eval_sets.make_eval_sets(data.eval_names, data, experiment, _one_device())
        return [
            f"eval/{name}/{metric}"
            for name, eval_set in sets.items()
            for metric in metric_names(experiment.task, eval_set, experiment.eval.metrics)
        ]


@functools.cache
def _one_device() -> jax.sharding.Mesh:
    sizes = MeshConfig(data=1, fsdp=1, sequence=1, tensor=1)
    return make_mesh(sizes, jax.devices()[:1])


def data_key(experiment: Experiment) -> list:
    """What the batches of an experiment depend on, as plain data; without the seed.

    Two experiments with the same key and seed see the same examples in the same order.
    """
    data = dataclasses.asdict(experiment.data)
    for key in ("cache_dir", "prefetch", "workers"):
        del data[key]
    return [
        json.loads(json.dumps(data)),
        experiment.task.objective,
        dataclasses.asdict(experiment.masking),
    ]


def choose_metrics(
    metrics: Sequence[str], experiments: Mapping[str, Experiment], counter: SizeCounter
) -> tuple[str, ...]:
    """The metrics that were asked for, or the main one; raises ConfigError for unknown ones.

    `experiments` are those of the variants, by name. All of them must produce the metrics.
    """
    chosen: list[str] = list(metrics)
    for variant, experiment in experiments.items():
        known = counter.metrics(experiment)
        if not chosen:
            chosen = [main_metric(known, experiment.checkpoint.best_metric)]
        for metric in chosen:
            if not is_measured(metric, (*known, *TRAINING_METRICS)):
                raise ConfigError(
                    f"{variant}: {metric} is not measured.{did_you_mean(metric, known)} "
                    f"Metrics of this config: {', '.join((*known, *TRAINING_METRICS))}"
                )
    return tuple(chosen)
