"""Evaluates a trained model: python evaluate.py --workdir=DIR [--step=N|best] [--split=NAME]

It evaluates the newest checkpoint of the run in DIR, or the checkpoint of --step. --average=N
averages the parameters of the last N checkpoints up to that one. It uses all eval sets of the run's
config; --split=NAME selects one of them, or another split of the data. --split=train scores the
training examples, which shows how well the run fits them. --config.a.b=v changes keys of data, eval
and mesh, the kind of attention and its range, and the range of positions.

It prints one JSON object and appends it to DIR/evaluations.jsonl. --details also writes what
report.py shows beside curves: confusions of classes, worst and best answers, loss by position.

--tasks=a,b scores tasks of lm-evaluation-harness instead, for comparisons with other models.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from checkpointing import loaded_run, provenance, run_directory
from evaluation import eval_details, eval_sets, harness
from evaluation.evaluator import Evaluator
from evaluation.metrics import signatures
from experiment import command_line
from experiment.schema import ConfigError, did_you_mean
from input_pipeline import pipeline, too_long
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import MissingSplitError, unnamed_splits_lines
from storage.mirror import upload_file, with_urls
from training import processes
from training.config import EvalConfig
from training.device_memory import out_of_memory
from training.exits import UnrecordedError
from training.infer_sizes import refuse_other_data
from training.job_ends import ending_together
from training.mesh import check_batch
from training.metric_writers import json_line

RECORD = "evaluations.jsonl"
REMEDY = "lower --config.eval.batch_size, or use more devices; plan.py says what a job needs"


def evaluate(
    workdir: str | Path,
    step: str = "",
    split: str = "",
    average: int = 1,
    config: Mapping[str, Any] | None = None,
    details: bool = False,
) -> dict[str, Any]:
    """Evaluates a run; returns the scores and the facts of the evaluation, as it records them.

    `step` and `average` select checkpoints as in `loaded_run.load`. `split` is the flag --split.
    `config` is the run's own config with changes; None: without changes. With `details`, also
    writes a file for each eval set to DIR/evaluations/.
    """
    if details and jax.process_count() > 1:
        raise ConfigError("--details needs a single process; evaluate on one host")
    begin = time.perf_counter()
    recorded = loaded_run.recorded_config(workdir)
    config = recorded if config is None else config
    workdir = run_directory.prepare(workdir)  # refuses a directory that is not writable
    model = loaded_run.load(workdir, step, average, config)
    settings, mesh = model.experiment.eval, model.mesh
    check_batch("eval.batch_size", settings.batch_size, mesh)

    data, names = load_data(model, split)
    model = loaded_run.with_class_order(model, data.labels)
    refuse_other_data(model, data)
    is_primary = processes.is_primary()
    if is_primary:
        for line in (*split_lines(data, model), *too_long.lines(data.description)):
            print(line, file=sys.stderr)
    with jax.set_mesh(mesh):
        sets = eval_sets.make_eval_sets(names, data, model.experiment, mesh)
        evaluator = Evaluator(
            model.model,
            model.model_config,
            model.experiment.task,
            settings,
            model.tokenizer,
            model.labels,
            provenance.reference_of(model, workdir),
        )
        collected = collectors(data, model, sets) if details else None
        scores = eval_sets.evaluate(
            evaluator, model.params, sets, show_progress=is_primary, details=collected
        )
    record = {
        "step": model.step,
        "split": split or "all",
        "rows": {name: scored_rows(data, name, settings) for name in sets},
        **scores,
        "signatures": signatures(settings.metrics),
        "averaged_steps": list(model.steps),
        "overrides": loaded_run.changes(recorded, config),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    if is_primary:
        append_record(workdir, record)
    for name, found in (collected or {}).items():
        path = eval_details.write_details(workdir, model.step, name, found.record())
        upload_file(workdir, path)
        print(with_urls(f"details: {path}"), file=sys.stderr)
    return record


def evaluate_tasks(
    workdir: str | Path,
    tasks: Sequence[str],
    step: str = "",
    average: int = 1,
    config: Mapping[str, Any] | None = None,
    *,
    task_path: str = "",
    **options: Any,
) -> dict[str, Any]:
    """Scores a run on tasks of lm-evaluation-harness; returns the scores, as it records them.

    `task_path` is a directory with your own tasks; without `tasks`, all of these are scored.
    `options` are those of `harness.TaskScorer`; other arguments as for `evaluate`.
    """
    harness.refuse_missing("--tasks")
    begin = time.perf_counter()
    recorded = loaded_run.recorded_config(workdir)
    workdir = run_directory.prepare(workdir)
    model = loaded_run.load(workdir, step, average, config)
    size = model.experiment.eval.batch_size
    check_batch("eval.batch_size", size, model.mesh)
    harness.refuse_unfit(model)
    loaded = harness.load_tasks(tasks, task_path, flags=("--tasks", "--task_path"))
    with jax.set_mesh(model.mesh):
        found = harness.TaskScorer(model, loaded, batch_size=size, **options)(model.params)
    record = {
        "step": model.step,
        "split": "tasks",
        **found,
        "averaged_steps": list(model.steps),
        "overrides": loaded_run.changes(recorded, recorded if config is None else config),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    append_record(workdir, record)
    return record


def append_record(workdir: Path, record: Mapping[str, Any]) -> None:
    """Appends a line to evaluations.jsonl, also that of a run in a bucket.

    Raises UnrecordedError if it cannot be written: the scores may have taken hours.
    """
    try:
        with (workdir / RECORD).open("a") as file:
            file.write(json_line(record))
        upload_file(workdir, workdir / RECORD)
    except OSError as error:
        raise UnrecordedError(
            f"the scores above were not written to {workdir / RECORD} ({error.strerror}); copy "
            "them from here, or make room and run the same command again",
            record,
        ) from error


def collectors(
    data: pipeline.Data, model: loaded_run.LoadedRun, names: Iterable[str]
) -> dict[str, eval_details.EvalDetails]:
    """What collects the rows of each eval set."""
    task, settings = model.experiment.task, model.experiment.eval
    has_classes = task.objective_spec.head == "classifier"
    return {
        name: eval_details.EvalDetails(
            task.objective,
            model.labels,
            data.eval_examples(name, scored_rows(data, name, settings)) if has_classes else (),
        )
        for name in names
    }


def split_lines(data: pipeline.Data, model: loaded_run.LoadedRun) -> list[str]:
    """Log lines: which rows of data without named splits are scored."""
    lines = unnamed_splits_lines(data.description["contents"])
    if lines and is_import(model):
        lines.append(
            "the model was imported, so it was trained on no row here: to score all, name the file "
            f"{data.eval_names[0]}, with its ending, and set data.path to its directory"
        )
    return lines


def is_import(model: loaded_run.LoadedRun) -> bool:
    """Whether the model is as convert.py made it, without training here."""
    return model.steps == (0,)


def scored_rows(data: pipeline.Data, name: str, settings: EvalConfig) -> int:
    """The number of rows that are scored: all, or at most eval.batches * eval.batch_size."""
    rows = data.description["eval_rows"][name]
    return min(rows, settings.batches * settings.batch_size) if settings.batches else rows


def load_data(model: loaded_run.LoadedRun, split: str) -> tuple[pipeline.Data, tuple[str, ...]]:
    """Loads the data; returns it and the names of the eval sets that --split selects."""
    experiment = model.experiment

    def load(eval_split: str, evaluate_on_train: bool = False) -> pipeline.Data:
        section = dataclasses.replace(experiment.data, eval_split=eval_split)
        if problems := list(section.problems()):
            raise ConfigError(problems)
        given = dict(
            objective=experiment.task.objective,
            masking=experiment.masking,
            seed=experiment.run.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            tokenizer=model.tokenizer,
            to_train=False,
            evaluate_on_train=evaluate_on_train,
        )
        try:
            return pipeline.load(section, **given)
        except MissingSplitError as error:
            if not is_import(model) or evaluate_on_train or error.split != section.train_split:
                raise
        # No split is one that it was trained on, so only the one to score has to be there.
        section = dataclasses.replace(section, train_split=eval_split, train_examples=0)
        return pipeline.load(section, **given)

    eval_split, train_split = experiment.data.eval_split, experiment.data.train_split
    # 'train' also means 'train[:99%]', whose other rows are held out.
    names = train_split, train_split.partition("[")[0]
    if split and split in names and split != eval_split:
        data = load(eval_split, evaluate_on_train=True)
        if processes.is_primary() and not is_import(model):
            print(caution(split, data, experiment.eval.batches), file=sys.stderr)
        return data, data.eval_names
    try:
        data = load(eval_split)
    except MissingSplitError:
        if not (split and is_import(model)):
            raise
        eval_names = (eval_split,)  # an import needs no other split than the one to score
    else:
        if not split or split in data.eval_names:
            return data, (split,) if split else data.eval_names
        eval_names = data.eval_names
    with in_terms_of_the_flag(split, experiment.data, eval_names):
        other = load(split)
    names = other.eval_names_of_split(split)
    if not names:
        # Sources without named splits hold out the same examples for every name.
        raise ConfigError(
            f"--split={split}: data.source={experiment.data.source} has no such split."
            f"{did_you_mean(split, eval_names)} It holds out: {', '.join(eval_names)}"
        )
    return other, names


@contextlib.contextmanager
def in_terms_of_the_flag(split: str, data: DataConfig, eval_names: Sequence[str]) -> Iterator[None]:
    """Errors about data.eval_split name the flag --split instead."""
    try:
        yield
    except MissingSplitError as error:
        if error.split != split:
            raise
        known = list(dict.fromkeys([*error.known, *eval_names]))
        raise ConfigError(
            f"--split={split}: {data.path or data.name} has no such split."
            f"{did_you_mean(split.partition('[')[0], known)} It has: {', '.join(known)}"
        ) from error
    except ConfigError as error:
        raise ConfigError(
            [each.replace("data.eval_split=", "--split=") for each in error.problems]
        ) from error


def caution(split: str, data: pipeline.Data, batches: int) -> str:
    """The warning that training rows are scored."""
    rows = sum(data.description["eval_rows"].values())
    sample = "; --config.eval.batches=N scores a sample of N batches"
    if batches:
        sample = f"; eval.batches={batches} scores a sample of them"
    return (
        f"warning: --split={split}: these are {rows:,} training rows; their score shows how well "
        f"the run fits its training data, not how well it does on new data{sample}"
    )


def score_tasks() -> dict[str, Any]:
    """Scores the tasks of the flags."""
    for flag in (SPLIT, DETAILS):
        if flag.value:
            raise ConfigError(
                f"--{flag.name} is about the run's own data, not --tasks; leave it out"
            )
    for flag, least in ((SHOTS, 0), (LIMIT, 1)):
        if flag.value is not None and flag.value < least:
            raise ConfigError(f"--{flag.name}={flag.value} must be at least {least}")
    return evaluate_tasks(
        WORKDIR.value,
        TASKS.value,
        STEP.value,
        AVERAGE.value,
        CONFIG.value.to_dict(),
        num_fewshot=SHOTS.value,
        limit=LIMIT.value,
        task_path=TASK_PATH.value,
        chat=CHAT.value,
    )


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run, such as runs/dates")
    if TASKS.value or TASK_PATH.value:
        show(score_tasks)
        return
    for flag in (SHOTS, LIMIT, CHAT):
        if flag.present:
            raise ConfigError(f"--{flag.name} is for --tasks; add that, or leave it out")
    processes.join()
    with ending_together(), out_of_memory("the evaluation", REMEDY):
        show(
            lambda: evaluate(
                WORKDIR.value,
                STEP.value,
                SPLIT.value,
                AVERAGE.value,
                CONFIG.value.to_dict(),
                DETAILS.value,
            )
        )


def show(score: Callable[[], Mapping[str, Any]]) -> None:
    """Prints the scores, also if they could not be recorded."""
    try:
        record, problem = score(), None
    except UnrecordedError as error:
        record, problem = error.record, error
    if processes.is_primary():
        print(json_line(record), end="", flush=True)
    if problem:
        print(with_urls(str(problem)), file=sys.stderr)
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run.")
    CONFIG = command_line.recorded_config_flag(loaded_run.recorded_config)
    STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest step.")
    SPLIT = flags.DEFINE_string(
        "split", "", "An eval set, or another split of the data; default: all eval sets."
    )
    AVERAGE = flags.DEFINE_integer(
        "average", 1, "Number of checkpoints whose parameters are averaged."
    )
    DETAILS = flags.DEFINE_bool("details", False, "Also write DIR/evaluations/, for report.py.")
    TASKS = flags.DEFINE_list("tasks", [], "Tasks of lm-evaluation-harness, separated by commas.")
    SHOTS = flags.DEFINE_integer("num_fewshot", None, "--tasks: examples in each prompt.")
    LIMIT = flags.DEFINE_integer("limit", None, "--tasks: the documents to score of each task.")
    TASK_PATH = flags.DEFINE_string(
        "task_path", "", "A directory with tasks of your own, for --tasks; without --tasks: all."
    )
    CHAT = flags.DEFINE_bool("chat", False, "--tasks: prompts get the model's chat template.")
    command_line.launch(main)
