"""Config -> one frozen `Experiment`, or a ConfigError that lists all problems.

No other code sees a ConfigDict.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiment.checks import problems_between_sections
from experiment.former_keys import with_current_keys
from experiment.schema import ConfigError, build
from input_pipeline.config import DataConfig
from input_pipeline.objectives.objective import Masking
from model.config import TransformerConfig
from training.config import (
    CheckpointConfig,
    EvalConfig,
    FailureConfig,
    FinetuneConfig,
    MeshConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from training.pruning_schedule import PruneConfig


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A validated config; `run` has the keys of the top level."""

    run: RunConfig
    model: TransformerConfig
    data: DataConfig
    task: TaskConfig
    optimizer: OptimizerConfig
    finetune: FinetuneConfig
    prune: PruneConfig
    mesh: MeshConfig
    checkpoint: CheckpointConfig
    failure: FailureConfig
    eval: EvalConfig

    @property
    def masking(self) -> Masking:
        """The keys of the task, other than its objective, that the data depends on."""
        task = self.task
        return Masking(
            task.noise_rate,
            task.mean_span,
            task.whole_words,
            task.next_sentence,
            auxiliary=task.auxiliary_masked_lm > 0,
            fim_rate=task.fim_rate,
            fim_spm_rate=task.fim_spm_rate,
            window_overlap=task.window_overlap,
            unanswerable=task.unanswerable,
        )


SECTIONS = {f.name: f.type for f in dataclasses.fields(Experiment) if f.name != "run"}


def from_mapping(config: Mapping[str, Any]) -> Experiment:
    """The experiment of a config; raises ConfigError with one line per problem."""
    config = with_current_keys(config)
    problems, parts = [], {}
    sections = {name: config[name] for name in SECTIONS if name in config}
    scalars = {key: value for key, value in config.items() if key not in SECTIONS}
    parts["run"], found = build(RunConfig, scalars, "")
    problems += found
    for name, section in SECTIONS.items():
        if not isinstance(sections.get(name), Mapping):
            problems.append(f"{name} must be a section of the config")
            continue
        parts[name], found = build(section, sections[name], name)
        problems += found
    if problems:
        raise ConfigError(problems)
    experiment = Experiment(**parts)
    problems = list(problems_between_sections(experiment))
    if problems:
        raise ConfigError(problems)
    return experiment
