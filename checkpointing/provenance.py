"""What a run takes from other runs: parameters to start from or to adapt, and a teacher."""

import dataclasses
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from checkpointing import loaded_run, run_directory
from checkpointing.checkpoint_manager import find_checkpoint
from checkpointing.stored_params import (
    LoadedParams,
    base_provenance,
    fingerprint,
    load_base,
    load_params,
    refuse_changed,
)
from experiment.schema import ConfigError
from experiment.sections import Experiment
from input_pipeline.config import IMAGE_KEYS
from input_pipeline.pipeline import Data
from input_pipeline.tokenizers.tokenizer import ids_in, load_tokenizer
from model.config import TransformerConfig
from model.positions import ABSOLUTE_POSITIONS
from pretrained import special_tokens_record
from pretrained.source_path import refuse_published
from training.finetune import Tuning, as_tree, by_name
from training.infer_sizes import refuse_other_data
from training.precision import starting_from
from training.processes import is_primary
from training.train_state import TrainState

CLASSES = "classes/"  # the head of a classifier
MOST_LISTED = 3  # names of new parameters in the log


@dataclasses.dataclass(frozen=True)
class InheritedParams:
    """Parameters of another run."""

    params: dict[str, Array]  # by name
    new: tuple[str, ...]  # not in the other run as they are here: missing, resized or reordered
    lines: tuple[str, ...] = ()  # for the log

    def base(self, tuning: Tuning) -> dict:
        """Returns the parameters that adapters adapt, as a tree."""
        return as_tree({name: self.params[name] for name in tuning.base})

    def apply_to(self, state: TrainState, tuning: Tuning) -> TrainState:
        """Returns the state with these parameters, except for the adapters' base."""
        if not self.params:
            return state
        own = by_name(state.params)
        inherited = {name: leaf for name, leaf in self.params.items() if name not in tuning.base}
        params = as_tree(own | inherited)
        opt_state = starting_from(state.opt_state, tuning.split(params)[0])
        return state.replace(params=params, opt_state=opt_state, ema=state.ema and _copy(params))


def _copy(params: dict) -> dict:
    return as_tree({name: leaf.copy() for name, leaf in by_name(params).items()})


def refuse_missing(experiment: Experiment) -> None:
    """Refuses runs that do not exist, before the data is prepared."""
    runs = {"init_from": experiment.run.init_from, "task.teacher": experiment.task.teacher}
    for key, run in runs.items():
        if run:
            refuse_published(key, run)
            find_checkpoint(run, key)


def refuse_other_sinusoids(init_from: str, model: TransformerConfig) -> None:
    """Refuses parameters trained with sinusoids of another scale, which no shape shows."""
    if not init_from or model.position != "sinusoidal":
        return
    workdir = find_checkpoint(init_from)[0].parent
    if not (workdir / run_directory.MODEL).exists():
        return
    theirs = loaded_run.recorded_model_config(workdir)
    if theirs.position != "sinusoidal":
        return
    for key in ("sinusoidal_variant", "sinusoidal_offset"):
        their_value, own_value = getattr(theirs, key), getattr(model, key)
        if their_value != own_value:
            raise ConfigError(
                f"init_from: {workdir} has model.{key}={their_value}, this model {own_value}; set "
                f"model.{key}={their_value}"
            )
    if not math.isclose(theirs.sinusoidal_scale, model.sinusoidal_scale, rel_tol=1e-6):
        raise ConfigError(
            f"init_from: {workdir} scales its sinusoids by {theirs.sinusoidal_scale:g}, this model "
            f"by {model.sinusoidal_scale:g}; set model.sinusoidal_scale={theirs.sinusoidal_scale!r}"
        )


def inherit_params(
    experiment: Experiment, like: dict, workdir: Path, data: Data, *, resuming: bool
) -> InheritedParams:
    """Loads the parameters of init_from that fit the model.

    `like` has the model's shapes and shardings. A resumed run has the parameters in its own
    checkpoint, except for those that adapters adapt.
    """
    run, finetune = experiment.run, experiment.finetune
    everything = tuple(by_name(like))
    if resuming and finetune.lora_rank:
        base = load_base(workdir, like)
        if base is None:
            raise ConfigError(f"{workdir / run_directory.PROVENANCE} is gone; put it back")
        named = by_name(base.params)
        return InheritedParams(named, tuple(name for name in everything if name not in named))
    if resuming or not run.init_from:
        return InheritedParams({}, everything)
    directory, _ = find_checkpoint(run.init_from)
    rows, how = None, ()
    if finetune.resize_vocabulary:
        vocab_size = by_name(like)["backbone/token_embedding/embedding"].shape[0]
        rows, how = _rows(directory.parent, vocab_size, data)
    else:
        run_directory.refuse_other_tokenizer(directory.parent, data.tokenizer_digest)
    found = load_params(run.init_from, like, rows)
    line = _line_on(run.init_from, by_name(like), found)
    warnings = _other_shape(directory.parent, everything, found.new)
    how = (*how, *(warnings or _other_pixels(directory.parent, experiment)))
    params = {name: leaf for name, leaf in by_name(found.params).items() if name not in found.new}
    new, (class_line, params) = list(found.new), _classes_by_name(directory.parent, data, params)
    if class_line and finetune.lora_rank:
        # A resumed run reads the base of its adapters from the other run, in that run's order. So
        # the head is not part of the base, but of the run's own parameters, which are trained.
        new += [name for name in params if name.startswith(CLASSES)]
        class_line += "; lora: the head for classes is trained in full"
    how = (*how, *([class_line] if class_line else []))
    return InheritedParams(params, (*new, *found.resized), (line, *how))


def _classes_by_name(workdir: Path, data: Data, params: dict) -> tuple[str, dict]:
    """Returns a log line, or "", and the parameters with the head in the order of our classes.

    If the names differ, the order stays, with a warning.
    """
    head = [name for name in params if name.startswith(CLASSES)]
    if not head or not (workdir / run_directory.MODEL).exists():
        return "", params
    theirs, ours = run_directory.read_model(workdir)[1], data.labels
    if not theirs or theirs == ours:
        return "", params
    if sorted(theirs) != sorted(ours):
        return (
            f"warning: the classes of {workdir} are {reprlib.repr(theirs)}, here "
            f"{reprlib.repr(ours)}: the outputs of its head keep their order"
        ), params
    order = [theirs.index(label) for label in ours]
    moved = {name: loaded_run.reordered(params[name], order) for name in head}
    return "classes matched by name: their order differs from init_from's", {**params, **moved}


def _line_on(run: str, like: Mapping[str, Any], found: LoadedParams) -> str:
    """Returns a line: how much of the model is from the run, and which parameters are not."""
    total = sum(leaf.size for leaf in like.values())
    taken = total - sum(like[name].size for name in found.new)
    listed = ", ".join(found.new[:MOST_LISTED]) or "none"
    if len(found.new) > MOST_LISTED:
        listed += f" and {len(found.new) - MOST_LISTED} more"
    line = f"parameters from {run}: {taken:,} of {total:,} ({taken / total:.1%})"
    line += f"; new: {listed}"
    return line + (f"; resized: {', '.join(found.resized)}" if found.resized else "")


def _other_shape(workdir: Path, names: Sequence[str], new: Sequence[str]) -> list[str]:
    """Returns a warning if no kernel of the blocks is from the run to start from."""
    # Biases and norms may have the same shape by chance.
    kernels = {name for name in names if "/blocks/" in name and name.endswith("/kernel")}
    if not kernels or not kernels <= set(new):
        return []
    return [
        f"warning: the blocks of {workdir} have other shapes, so this model's blocks are new; "
        f"to give it their shapes, name the workdir twice: --config=configs/x.py:{workdir} "
        f"--config.init_from={workdir}"
    ]


def _other_pixels(workdir: Path, experiment: Experiment) -> list[str]:
    """Returns a warning for each key that converts pixels differently from the other run."""
    if experiment.model.input != "patches" or not (workdir / run_directory.CONFIG).exists():
        return []
    config = run_directory.read_config(workdir)
    theirs = run_directory.with_defaults(config, {"data": IMAGE_KEYS})["data"]
    lines = []
    for key in ("image_edge", "image_fit", "image_resample", "image_mean", "image_std"):
        ours, before = getattr(experiment.data, key), theirs[key]
        if ours != before:
            lines.append(
                f"warning: {workdir} has data.{key}={before}, this run {ours}: its parameters were "
                f"trained on other inputs; set --config.data.{key} to the same"
            )
    return lines


def _rows(workdir: Path, vocab_size: int, data: Data) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Returns the other run's row for each row of our token table, or -1; and a log line.

    The rows are None if the two tables are the same.
    """
    theirs = run_directory.read_model(workdir)[0]["vocab_size"]
    rows = np.full(vocab_size, -1, np.int32)
    if (workdir / "tokenizer.json").exists():
        tokenizer = load_tokenizer(workdir)
        if (tokenizer.digest, theirs) == (data.tokenizer_digest, vocab_size):
            return None, ("the vocabulary is that of init_from; nothing is resized",)
        ids, by = ids_in(tokenizer, data.tokenizer), "what they spell"
        rows[: len(ids)] = ids
    else:
        same, by = min(vocab_size, theirs), f"their ids, as {workdir} has no tokenizer"
        rows[:same] = np.arange(same)
    matched = np.count_nonzero(rows >= 0)
    return rows, (f"tokens matched by {by}: {matched:,} of {vocab_size:,} rows kept",)


def inherit_special_tokens(
    init_from: str, model: TransformerConfig, data: Data, workdir: Path
) -> None:
    """Takes over what init_from records of a published model's special tokens, for an export.

    A run with another tokenizer takes over nothing.
    """
    if not is_primary():
        return
    record = None
    source = find_checkpoint(init_from)[0].parent if init_from else None
    if source and run_directory.has_tokenizer(source, data.tokenizer_digest):
        record = special_tokens_record.load(source)
    if record and run_directory.read_model(source)[0]["max_length"] != model.max_length:
        longest = model.max_length if model.position == "learned" else None
        record = dataclasses.replace(record, max_length=longest)
    special_tokens_record.save(workdir, record)


def load_teacher(
    experiment: Experiment, model: TransformerConfig, data: Data, workdir: Path, *, resuming: bool
) -> loaded_run.LoadedRun | None:
    """Loads the teacher on the student's mesh; refuses one that cannot teach this student."""
    run = experiment.task.teacher
    if not run:
        return None
    directory, step = find_checkpoint(run, "task.teacher")
    source = run_directory.read_provenance(workdir).get("teacher") if resuming else None
    if source:
        step = source["step"]  # the other run may have newer checkpoints by now
    mesh = dataclasses.asdict(experiment.mesh)
    config = loaded_run.recorded_config(directory.parent) | {"mesh": mesh}
    teacher = loaded_run.load(directory.parent, str(step), config=config)
    problem = _why_no_teacher(teacher, experiment, model, data)
    if problem:
        raise ConfigError(f"task.teacher={run} {problem}")
    try:
        refuse_other_data(teacher, data)
    except ConfigError as error:
        raise ConfigError(f"task.teacher={run}: {error}") from error
    if source:
        refuse_changed(
            teacher.params, source["params"], f"{workdir} learns from step {step} of {run}"
        )
    return teacher


def load_reference(experiment: Experiment, like: dict, workdir: Path, *, resuming: bool) -> dict:
    """The frozen parameters that an objective compares with: those that the run started from.

    Empty if the objective needs none, or if the run has adapters, whose base is the reference.
    `like` has the model's shapes and shardings.
    """
    objective, run = experiment.task.objective, experiment.run.init_from
    if not experiment.task.objective_spec.needs_reference or experiment.finetune.lora_rank:
        return {}
    directory, step = find_checkpoint(run)
    source = run_directory.read_provenance(workdir).get("reference") if resuming else None
    if source:
        step = source["step"]  # the other run may have newer checkpoints by now
    found = load_params(f"{directory.parent}:{step}", like)
    refuse_partial_reference(run, objective, found.new)
    if source:
        refuse_changed(
            found.params, source["params"], f"{workdir} is compared with step {step} of {run}"
        )
    return found.params


def refuse_partial_reference(init_from: str, objective: str, new: Sequence[str]) -> None:
    """Refuses a reference that lacks parameters; `new`: those that init_from lacks."""
    if new:
        raise ConfigError(
            f"init_from={init_from} has no {new[0]} that fits, and task.objective={objective} "
            "compares with the model that it starts from; give the model the shape of that run: "
            "--config=configs/x.py:WORKDIR"
        )


def reference_of(model: loaded_run.LoadedRun, workdir: Path) -> dict | None:
    """The frozen reference of a trained run; None if its objective needs none."""
    if not model.experiment.task.objective_spec.needs_reference:
        return None
    base = load_base(workdir, model.params)
    if base is not None:
        return base.params
    return load_reference(model.experiment, model.params, workdir, resuming=True)


def _why_no_teacher(
    teacher: loaded_run.LoadedRun, experiment: Experiment, model: TransformerConfig, data: Data
) -> str:
    theirs, ours = teacher.experiment, experiment
    if theirs.task.objective != ours.task.objective:
        return (
            f"was trained for task.objective={theirs.task.objective}, not {ours.task.objective}; "
            "choose a teacher with the same objective"
        )
    if teacher.tokenizer is not None and teacher.tokenizer.digest != data.tokenizer_digest:
        return (
            "was trained with another tokenizer, so its outputs are for other tokens; set "
            "data.tokenizer to the tokenizer.json there"
        )
    for key in ("vocab_size", "num_classes"):
        their_size, our_size = getattr(teacher.model_config, key), getattr(model, key)
        if their_size != our_size:
            return f"has model.{key}={their_size}, but this model has {our_size}; make them equal"
    for key in ("image_mean", "image_std"):
        if getattr(theirs.data, key) != getattr(ours.data, key):
            return f"was trained with data.{key}={getattr(theirs.data, key)}; set it here too"
    longest, limit = max(ours.data.length, ours.data.encoder_length), teacher.model_config
    if limit.input == "tokens" and limit.position in ABSOLUTE_POSITIONS:
        if limit.family != "encoder_decoder":
            longest = ours.data.length
        if longest > limit.max_length:
            return (
                f"cannot address more than {limit.max_length} positions, but the data has rows of "
                f"{longest}; shorten them"
            )
    return ""


def record(
    workdir: Path,
    experiment: Experiment,
    tuning: Tuning,
    base: dict,
    teacher: loaded_run.LoadedRun | None,
    reference: dict,
) -> None:
    """Records which parameters of other runs are needed to resume or use this run."""
    sources = {}
    if tuning.rank:
        run = experiment.run.init_from
        sources["base"] = base_provenance(run, workdir, base, tuning.alpha)
    if teacher is not None:
        sources["teacher"] = {"step": teacher.step, "params": fingerprint(teacher.params)}
    if reference:
        _, step = find_checkpoint(experiment.run.init_from)
        sources["reference"] = {"step": step, "params": fingerprint(reference)}
    run_directory.record_provenance(workdir, sources)
