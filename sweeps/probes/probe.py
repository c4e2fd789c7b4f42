"""What a probe is, and the run that it measures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from checkpointing import loaded_run
from checkpointing.loaded_run import LoadedRun
from evaluation import eval_sets
from evaluation.eval_details import EvalDetails
from evaluation.evaluator import EvalSet, Evaluator
from experiment.sections import Experiment
from input_pipeline import pipeline
from training.infer_sizes import refuse_other_data
from training.mesh import check_batch
from training.model_for_task import smallest_batch
from training.train_state import initial_params

ROWS = 16  # of the batch that most probes read


@dataclasses.dataclass(frozen=True)
class ProbedRun:
    """A finished run with its data, and its parameters before training."""

    workdir: Path
    run: LoadedRun
    data: pipeline.Data

    @functools.cached_property
    def initial_params(self) -> dict:
        """The parameters that the config and the seed give, without adapters."""
        run = self.run
        with jax.set_mesh(run.mesh):
            return initial_params(
                run.model,
                run.experiment.task,
                smallest_batch(run.model_config),
                run.mesh,
                run.experiment.run.seed,
            )

    def eval_batch(self, rows: int = ROWS, name: str = "") -> dict[str, np.ndarray]:
        """The first rows of an eval set, by default of the first; the same every time."""
        return dict(self.data.eval_batches(name or self.data.eval_names[0], rows, 1)[0])

    def params_by_time(self) -> dict[str, dict]:
        """The parameters before and after training, as keys of probes name them.

        With `init_from`, those before training are another model's, and are left out.
        """
        init = {} if self.run.experiment.run.init_from else {"init": self.initial_params}
        return {**init, "trained": self.run.params}

    def evaluate(self, details: EvalDetails | None = None) -> tuple[EvalSet, dict[str, float]]:
        """The first eval set and its scores, as the config asks for them."""
        run, name = self.run, self.data.eval_names[0]
        task, settings = run.experiment.task, run.experiment.eval
        with jax.set_mesh(run.mesh):
            eval_set = eval_sets.make_eval_sets([name], self.data, run.experiment, run.mesh)[name]
            evaluator = Evaluator(
                run.model, run.model_config, task, settings, run.tokenizer, run.labels
            )
            return eval_set, evaluator.evaluate(run.params, eval_set, details)


@dataclasses.dataclass(frozen=True)
class Probe:
    """Numbers of a finished run that training does not log."""

    compute: Callable[[ProbedRun], Mapping[str, float]]
    problem: Callable[[Experiment], str]  # why it cannot measure a config; "" if it can
    keys: tuple[str, ...]  # of its numbers; `*` stands for a number


def open_run(
    workdir: Path, config: Mapping[str, Any] | None = None, *, to_train: bool = True
) -> ProbedRun:
    """Loads a run from its newest checkpoint, with its data.

    `config` is the run's own with changes, as in `loaded_run.load`. Without `to_train`, only eval
    sets are opened.
    """
    run = loaded_run.load(workdir, config=config)
    check_batch("eval.batch_size", run.experiment.eval.batch_size, run.mesh)
    experiment = run.experiment
    data = pipeline.load(
        experiment.data,
        objective=experiment.task.objective,
        masking=experiment.masking,
        seed=experiment.run.seed,
        tokenizer=run.tokenizer,
        to_train=to_train,
    )
    run = loaded_run.with_class_order(run, data.labels)
    refuse_other_data(run, data)
    return ProbedRun(workdir, run, data)


def real_rows(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which rows of a batch are examples, not rows that only pad it, (B,)."""
    weights = np.asarray(batch["weights"])
    return (weights.reshape(len(weights), -1) > 0).any(axis=1)
