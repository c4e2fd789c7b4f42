"""Loads a trained model from its run directory: config, tokenizer and parameters.

The files that train.py wrote are enough to rebuild the model; the data is not needed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import Array
from jax.sharding import Mesh

from checkpointing import run_directory, run_identity
from checkpointing.checkpoint_manager import DIRECTORY, best_step, saved_steps
from checkpointing.stored_params import read_params
from configs import default
from experiment import schema, sections
from experiment.schema import ConfigError
from input_pipeline.tokenizers.subword import SubwordTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer, load_tokenizer
from model.attention import KINDS, pattern_of
from model.config import TransformerConfig
from pretrained.source_path import refuse_published
from storage.mirror import checkpoint_directory, open_run_directory
from training.compilation import keep_programs
from training.config import CheckpointConfig, MeshConfig
from training.mesh import make_mesh
from training.model_for_task import make_model, smallest_batch
from training.train_state import abstract_params

READ_ATTEMPTS = 20  # of the newest checkpoints, which a running job replaces
# Sections that may be changed for a trained model, and their keys that may not be changed, because
# the parameters belong to the ids of one tokenizer.
CHANGEABLE = ("data", "eval", "mesh", "compilation_cache")
UNCHANGEABLE = ("data.tokenizer", "data.tokenizer_size", "data.lowercase")
# Keys of the model that no parameter depends on: the reach of attention, and how it is computed.
REACH = tuple(
    f"model.{key}"
    for key in (
        "max_length", "rope_scaling", "rope_factor", "rope_low_frequency", "rope_high_frequency",
        "rope_original_length", "rope_attention_factor", "rope_short_factors", "rope_long_factors",
        "attention", "attention_window", "attention_dilation",
        "attention_chunk", "attention_overlap", "attention_memory", "attention_features",
        "global_tokens", "global_limit", "matmul",
    )
)  # fmt: skip
# What an attention kind may declare that adds parameters.
KIND_PARAMETERS = {
    "extra_qkv": "further projections",
    "score_vector": "a vector for the scores of each head",
}

# Sizes of the model that training infers from the data if the config has 0.
INFERRED = (
    "vocab_size", "separator_id", "mask_id", "num_classes", "image_size", "image_channels",
    "input_shape", "input_mean", "input_std", "horizon",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained model: its config, parameters, tokenizer and classes."""

    experiment: sections.Experiment
    model_config: TransformerConfig  # with the sizes inferred from the data
    model: nn.Module
    params: dict  # the moving average, if the run keeps one
    tokenizer: Tokenizer | None  # None for images
    labels: tuple[str, ...]
    mesh: Mesh  # where the parameters are
    steps: tuple[int, ...]  # of the checkpoint, or of all checkpoints that were averaged
    # Whether it was trained on pairs of texts; None: unknown, as for a published model.
    text_pairs: bool | None = None

    @property
    def step(self) -> int:
        return self.steps[-1]


def load(
    workdir: str | Path, step: str = "", average: int = 1, config: Mapping[str, Any] | None = None
) -> LoadedRun:
    """Loads the model of a run from its newest checkpoint, from a step, or from the "best" one.

    `average` is the number of checkpoints, up to that one, to average. `config` is the run's own,
    from `recorded_config`, with changes to keys in `CHANGEABLE` and `REACH`.
    """
    workdir = open_run_directory("--workdir", workdir)
    recorded = recorded_config(workdir)
    config = recorded if config is None else config
    changed = changes(recorded, config)
    _refuse_changes(changed)
    experiment = sections.from_mapping(config)
    task = experiment.task
    keep_programs(experiment.run.compilation_cache)
    model_config, labels = recorded_model_config(workdir), run_directory.read_model(workdir)[1]
    _refuse_contradiction(workdir, experiment, model_config, changed)
    reach = {name.partition(".")[2]: now for name, now in changed.items() if name in REACH}
    if "max_length" in reach and model_config.position == "learned":
        raise ConfigError(
            "model.max_length cannot be changed: the table of model.position=learned has "
            f"{model_config.max_length} rows; shorten the rows of data instead"
        )
    recorded_pattern = pattern_of(model_config.attention)
    model_config = dataclasses.replace(model_config, **reach)
    _refuse_other_parameters(recorded_pattern, pattern_of(model_config.attention))
    if model_config.needs_separator and not model_config.separator_id:
        raise ConfigError(
            f"model.global_tokens={model_config.global_tokens} needs a token that separates texts, "
            "which this run does not know; leave it at first"
        )
    steps = _select_steps(workdir, step, average, experiment.checkpoint)
    _refuse_changed_identity(workdir, steps)
    has_tokenizer = model_config.input == "tokens"
    tokenizer = load_tokenizer(workdir) if has_tokenizer else None
    if steps == (0,) and isinstance(tokenizer, SubwordTokenizer) and tokenizer.template is None:
        logging.warning(
            "%s was converted by an earlier version, which did not keep the special tokens of the "
            "published tokenizer; convert the model again",
            workdir,
        )

    model = make_model(model_config, task)
    mesh = _mesh(experiment.mesh, is_recorded=not any(n.startswith("mesh.") for n in changed))
    like = abstract_params(model, task, smallest_batch(model_config), mesh)
    for attempt in range(READ_ATTEMPTS):
        try:
            params = read_params(workdir, steps, like, ema=experiment.optimizer.ema_decay > 0)
            break
        except Exception:
            # The run may go on, and have deleted this checkpoint while it was read.
            newer = _select_steps(workdir, step, average, experiment.checkpoint)
            if newer == steps or attempt == READ_ATTEMPTS - 1:
                raise
            logging.warning("%s has newer checkpoints by now: reading step %d", workdir, newer[-1])
            steps = newer
    text_pairs = run_directory.read_text_pairs(workdir)
    return LoadedRun(
        experiment, model_config, model, params, tokenizer, labels, mesh, steps, text_pairs
    )


def _refuse_changed_identity(workdir: Path, steps: Sequence[int]) -> None:
    directory = checkpoint_directory(workdir, DIRECTORY)
    for each in steps:
        run_identity.refuse_changed(workdir, directory / str(each))


def _refuse_other_parameters(recorded: Sequence[str], chosen: Sequence[str]) -> None:
    """Raises ConfigError for kinds of attention with other parameters than the recorded ones."""
    for attribute, what in KIND_PARAMETERS.items():
        having = [name for name, kind in KINDS.items() if getattr(kind, attribute)]
        if set(having).isdisjoint(recorded) != set(having).isdisjoint(chosen):
            names = ", ".join(having)
            raise ConfigError(
                f"model.attention cannot be changed to or from {names}: only {names} has {what}"
            )


def recorded_config(workdir: str | Path, flag: str = "--workdir") -> dict[str, Any]:
    """Returns the config of a run, with defaults for keys that are newer than the run.

    `flag` is the flag that names the directory, for error messages.
    """
    workdir = open_run_directory(flag, workdir)
    refuse_published(flag, workdir)
    return run_directory.with_defaults(
        run_directory.read_config(workdir), default.get_config().to_dict()
    )


def changes(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that differ from the run's own config, by dotted name."""
    return {name: now for name, _, now in run_directory.differences(recorded, dict(config))}


def recorded_model_config(workdir: Path) -> TransformerConfig:
    """Returns the model's config with the sizes inferred from the data."""
    recorded, path = run_directory.read_model(workdir)[0], workdir / run_directory.MODEL
    config, problems = schema.build(
        TransformerConfig,
        run_directory.model_with_defaults(recorded, default.get_config().model.to_dict()),
        "model",
    )
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return config.resolve()  # a key that the record lacks may have a default of 0


def _refuse_contradiction(
    workdir: Path,
    experiment: sections.Experiment,
    model: TransformerConfig,
    changed: Mapping[str, Any],
) -> None:
    """Refuses a model.json that is not of the run in config.json, such as one edited by hand."""
    sizes = {key: getattr(model, key) for key in INFERRED}
    in_both = run_directory.read_config(workdir)["model"].keys()  # older runs lack newer keys
    in_both &= run_directory.read_model(workdir)[0].keys()
    compared = {key for key in in_both if f"model.{key}" not in changed}
    expected, found = (
        {key: value for key, value in dataclasses.asdict(each).items() if key in compared}
        for each in (experiment.model.resolve(**sizes), model)
    )
    if differing := list(run_directory.differences(expected, found)):
        listed = "; ".join(f"{name}: {one} and {other}" for name, one, other in differing[:3])
        raise ConfigError(
            f"{workdir / run_directory.CONFIG} and {run_directory.MODEL} contradict each other in "
            f"model ({listed}); one of them has been changed since the run wrote it: restore it, "
            "or run train.py again with the run's command to write both"
        )


def _refuse_changes(changed: Mapping[str, Any]) -> None:
    refused = [
        name
        for name in changed
        if name in UNCHANGEABLE or (name.partition(".")[0] not in CHANGEABLE and name not in REACH)
    ]
    if refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot be changed after training; change only keys of "
            f"{', '.join(CHANGEABLE)}, but not {' or '.join(UNCHANGEABLE)}; and "
            f"{', '.join(REACH)}"
        )


def _select_steps(
    workdir: Path, step: str, average: int, config: CheckpointConfig
) -> tuple[int, ...]:
    """Returns the steps of the checkpoints to load."""
    saved = saved_steps(workdir)
    listed = ", ".join(map(str, saved))
    if not saved:
        raise ConfigError(f"{workdir} has no checkpoint; train it first, or choose another")
    if step == "best":
        if not config.best_metric:
            raise ConfigError(
                f"step=best needs a run with checkpoint.best_metric, which {workdir} lacks; choose "
                f"one of: {listed}"
            )
        last = best_step(workdir, config)
        if last is None:
            raise ConfigError(
                f"step=best: no checkpoint of {workdir} has been scored by "
                f"{config.best_metric}; choose one of: {listed}"
            )
    elif not step:
        last = saved[-1]
    elif step.isdecimal() and int(step) in saved:
        last = int(step)
    else:
        has_best = config.best_metric and best_step(workdir, config) is not None
        choices = f"best or one of: {listed}" if has_best else f"one of: {listed}"
        raise ConfigError(f"step={step} is not a checkpoint of {workdir}; choose {choices}")
    up_to_there = [each for each in saved if each <= last]
    if not 1 <= average <= len(up_to_there):
        raise ConfigError(
            f"average={average} must be 1 to {len(up_to_there)}, the number of checkpoints in "
            f"{workdir} up to step {last}; they are: {', '.join(map(str, up_to_there))}"
        )
    return tuple(up_to_there[-average:])


def _mesh(config: MeshConfig, *, is_recorded: bool) -> Mesh:
    """Returns the config's mesh; if the recorded one does not fit, all devices along `data`."""
    try:
        return make_mesh(config)
    except ConfigError:
        if not is_recorded:
            raise
        return make_mesh(MeshConfig(data=-1, fsdp=1, sequence=1, tensor=1))


def with_class_order(model: LoadedRun, labels: tuple[str, ...]) -> LoadedRun:
    """Returns the same model with the outputs of its classes in the order of `labels`.

    Data may lack some of the model's classes; these come last. The model is unchanged if the data
    has others: the caller refuses those.
    """
    head = model.params.get("classes")
    if head is None or labels == model.labels[: len(labels)]:
        return model
    if not set(labels) <= set(model.labels):
        return model
    order = [model.labels.index(label) for label in labels]
    outputs = next(iter(head.values())).shape[-1]  # there may be more than names
    order += [number for number in range(outputs) if number not in order]
    labels = tuple(model.labels[number] for number in order if number < len(model.labels))
    head = {name: reordered(leaf, order) for name, leaf in head.items()}
    params = {**model.params, "classes": head}
    return dataclasses.replace(model, params=params, labels=labels)


def reordered(leaf: Array, order: Sequence[int]) -> Array:
    """Reorders the last axis, one entry per class."""
    return jax.device_put(jnp.take(leaf, np.array(order), axis=-1), leaf.sharding)
