"""Scores of a language model on rows longer than those of training: 1, 2 and 4 times as long.

Longer rows have more context, so a model that can use it should score better.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpointing import loaded_run
from experiment.sections import Experiment
from sweeps.probes.probe import Probe, ProbedRun, open_run

TIMES = (1, 2, 4)
TOKENS = 8192  # in a batch of any row length, so equal numbers of batches score equally much text
SCORES = ("loss", "bits_per_byte")


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): no running text, or no room."""
    spec, data, model = experiment.task.objective_spec, experiment.data, experiment.model
    if spec.head != "language_model" or spec.has_source or spec.has_prefix:
        return f"task.objective={experiment.task.objective} does not predict running text"
    if data.example_kind != "documents":
        return f"data.source={data.source} is no running text, which can be cut into longer rows"
    if not fits(model.position, model.max_length, TIMES[1] * data.length):
        return f"model.position=learned has only {model.max_length} positions (model.max_length)"
    return ""


def fits(position: str, max_length: int, length: int) -> bool:
    """Whether a model knows the positions of rows of this length."""
    return position != "learned" or length <= max_length


def row_scores(
    workdir: Path,
    config: Mapping[str, Any],
    length: int,
    *,
    batches: int = 0,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """The scores of a run on rows of `length` of its first eval set.

    `config` is the run's own, `batches` the number of batches of 8,192 tokens (0: all), `changes`
    are keys of the model's config.
    """
    model = {**config["model"], **(changes or {})}
    if model["position"] == "sinusoidal":
        model["max_length"] = max(model["max_length"], length)
    rows = max(1, TOKENS // length)
    changed = {
        **config,
        "model": model,
        "data": {**config["data"], "length": length},
        "eval": {**config["eval"], "batch_size": rows, "batches": batches},
    }
    return open_run(workdir, changed, to_train=False).evaluate()[1]


def compute(probed: ProbedRun) -> dict[str, float]:
    """Loss in nats per token, and bits per byte, by the factor on the length.

    As many tokens are scored as in an evaluation of the run. They are the same ones for all lengths
    only if the config scores all of them (eval.batches=0).
    """
    experiment, model = probed.run.experiment, probed.run.model_config
    length, settings = experiment.data.length, experiment.eval
    batches = -(-settings.batches * settings.batch_size * length // TOKENS)
    config = loaded_run.recorded_config(probed.workdir)
    found = {}
    for times in TIMES:
        if fits(model.position, model.max_length, times * length):
            scores = row_scores(probed.workdir, config, times * length, batches=batches)
            found |= {f"{name}/{times}": scores[name] for name in SCORES if name in scores}
    return dict(sorted(found.items()))


PROBE = Probe(compute, problem, keys=tuple(f"{name}/*" for name in SCORES))
