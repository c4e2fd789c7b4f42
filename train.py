"""Trains a model: python train.py --config=configs/x.py[:arch] --workdir=DIR --config.a.b=v

Without flags it trains a small Transformer to read dates (configs/dates.py). The same command run
again resumes from the last checkpoint.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from checkpointing import hub_run, provenance, quiet_orbax, run_directory, run_summary
from checkpointing.checkpoint_manager import Checkpoints, saved_steps
from checkpointing.loaded_run import LoadedRun
from checkpointing.recorded_run import read_run
from configs import default
from evaluation import eval_sets, harness
from evaluation.evaluator import EvalSet, Evaluator, metric_names
from evaluation.metrics import signatures
from experiment import command_line, sections
from experiment.schema import ConfigError, did_you_mean
from experiment.sections import Experiment
from input_pipeline import pipeline, too_long
from input_pipeline.sources.base import unnamed_splits_lines
from pretrained.source_path import refuse_published_directory
from storage.mirror import open_run_directory, source_of
from training import processes
from training.compilation import keep_programs
from training.config import EvalConfig
from training.device_memory import out_of_memory, refuse_batch, refuse_state
from training.exits import AT_ONCE
from training.finetune import parameter_counts, rate_scales, select_trainable
from training.infer_sizes import fit_to_data
from training.job_ends import ending_together
from training.loop import Loop
from training.mesh import check_batch, check_offload, make_mesh
from training.metric_writers import Reporter, parameter_table
from training.model_for_task import make_model
from training.pruning import make_pruner
from training.schedules import learning_rate
from training.step import make_train_step
from training.train_state import (
    FrozenInputs,
    Teacher,
    TrainSpec,
    TrainState,
    abstract_params,
    abstract_state,
)

SHOWN_CLASSES = 20


def train_and_evaluate(config: Mapping[str, Any], workdir: str) -> dict[str, float]:
    """Runs a whole job; returns the metrics of the last evaluation."""
    return train(*make_experiment(config, workdir), workdir)


def make_experiment(config: Mapping[str, Any], workdir: str) -> tuple[Experiment, str]:
    """Returns the validated experiment, and a log line.

    The line is empty unless a resumed run keeps defaults that have since changed.
    """
    former = ""
    workdir, recorded = open_run_directory("--workdir", workdir), {}
    if saved_steps(workdir):
        defaults = default.get_config().to_dict()
        config, former = run_directory.as_begun(workdir, config, defaults)
        recorded = run_directory.read_config(workdir)
    config = hub_run.with_commits(config, recorded)
    return sections.from_mapping(config), former


def train(experiment: Experiment, former_defaults: str, workdir: str) -> dict[str, float]:
    """Trains from scratch or resumes; returns the metrics of the last evaluation."""
    run, task = experiment.run, experiment.task
    refuse_published_directory("--workdir", workdir)  # it would be overwritten
    workdir = run_directory.prepare(workdir)
    with contextlib.ExitStack() as stack:
        before_commit = stack.enter_context(run_directory.lock(workdir))
        keep_programs(run.compilation_cache)
        mesh = make_mesh(experiment.mesh)
        accumulate = experiment.optimizer.accumulate
        check_batch("data.batch_size", experiment.data.batch_size, mesh, accumulate)
        check_batch("eval.batch_size", experiment.eval.batch_size, mesh)
        check_offload(experiment.optimizer, mesh)
        provenance.refuse_missing(experiment)

        # Data
        tokenizer = hub_run.data_tokenizer(experiment.data.tokenizer, run.init_from)
        data = pipeline.load(
            replace(experiment.data, tokenizer=tokenizer),
            objective=task.objective,
            masking=experiment.masking,
            seed=run.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        model_config = fit_to_data(experiment.model, data, run.init_from)
        rows, shortest = experiment.data.batch_size, experiment.data.length
        shortest = min(data.description.get("padded_to", (shortest,)))
        if not experiment.finetune.freeze:  # frozen blocks keep no inputs
            refuse_batch(model_config, rows, shortest, mesh, accumulate)
        sets = eval_sets.make_eval_sets(data.eval_names, data, experiment, mesh)
        tasks = load_tasks(experiment.eval) if experiment.eval.has_tasks else None
        experiment = with_best_metric(experiment, sets, tasks.metric_names if tasks else ())

        # The run directory: where to start
        stack.enter_context(jax.set_mesh(mesh))
        checkpoints = stack.enter_context(
            Checkpoints(workdir, experiment.checkpoint, before_commit)
        )
        if checkpoints.latest_step() == 0:
            raise ConfigError(
                f"{workdir} holds weights that were converted; start from them with "
                f"--config.init_from={workdir} in another --workdir"
            )
        start = checkpoints.newest_valid(warn) or 0
        if start > run.steps:
            raise ConfigError(
                f"{workdir} is already at step {start}, beyond steps={run.steps}; "
                "raise steps or choose another --workdir"
            )
        changes = record_run(workdir, experiment, model_config, data, resuming=start > 0)

        # Parameters of other runs: to start from, to adapt, or of a teacher
        if not start:
            provenance.refuse_other_sinusoids(run.init_from, model_config)
        model, batch = make_model(model_config, task), data.train_batch(0)
        model_params = abstract_params(model, task, batch, mesh)
        inherited = provenance.inherit_params(
            experiment, model_params, workdir, data, resuming=start > 0
        )
        teacher = provenance.load_teacher(
            experiment, model_config, data, workdir, resuming=start > 0
        )
        reference = provenance.load_reference(experiment, model_params, workdir, resuming=start > 0)
        if not start and task.objective_spec.needs_reference:
            provenance.refuse_partial_reference(run.init_from, task.objective, inherited.new)
        tuning = select_trainable(experiment.finetune, model_params, inherited.new)
        frozen_inputs = FrozenInputs(
            inherited.base(tuning), teacher.params if teacher else {}, reference
        )
        if not start:
            provenance.record(workdir, experiment, tuning, frozen_inputs.base, teacher, reference)
            provenance.inherit_special_tokens(run.init_from, model_config, data, workdir)

        # State and step
        spec = TrainSpec(
            model,
            task,
            experiment.optimizer,
            learning_rate(experiment.optimizer, run.steps, model_config.base_width),
            rate_scales(experiment.finetune, model_config),
            tuning,
            teacher and Teacher(teacher.model, teacher.experiment.task),
            experiment.failure,
            run.seed,
            make_pruner(experiment.prune, run.steps, tuning.split(model_params)[0]),
        )
        abstract, init = abstract_state(spec, batch, mesh)
        refuse_state(abstract, mesh)

        def initial_state() -> TrainState:
            return inherited.apply_to(init(jax.random.key(run.seed)), tuning)

        # Log lines
        reporter = stack.enter_context(
            Reporter(
                workdir,
                start,
                run.steps,
                run.wandb_project,
                primary=processes.is_primary(),
                best_metric=experiment.checkpoint.best_metric,
                config=run_directory.read_config(workdir) if processes.is_primary() else {},
            )
        )
        resumed = resumed_lines(workdir, start, changes, former_defaults)
        for line in resumed if start else inherited.lines:
            reporter.log(line)
        for line in data_lines(data):
            reporter.log(line)
        reporter.log(parameter_table(model_params))
        reporter.log(trainable_line(abstract.params, frozen_inputs.base, tuning))
        for metric, signature in signatures(experiment.eval.metrics).items():
            reporter.log(f"{metric}: {signature}")

        # Training: see training/loop.py
        loop = Loop(
            experiment=experiment,
            workdir=workdir,
            data=data,
            mesh=mesh,
            spec=spec,
            train_step=make_train_step(spec, abstract),
            frozen_inputs=frozen_inputs,
            abstract=abstract,
            initial_state=initial_state,
            evaluator=Evaluator(
                model,
                model_config,
                task,
                experiment.eval,
                data.tokenizer,
                data.labels,
                frozen_inputs.reference_of(task),
            ),
            eval_sets=sets,
            checkpoints=checkpoints,
            reporter=reporter,
            task_scores=tasks and make_task_scores(tasks, experiment, model, data, mesh),
        )
        with out_of_memory("a training step", memory_remedy(experiment)):
            scores = loop.run(start)
        reporter.finish(scores)
        return scores


def memory_remedy(experiment: Experiment) -> str:
    """What to do about a step that does not fit into memory."""
    data, accumulate = experiment.data, experiment.optimizer.accumulate
    remat = "" if experiment.model.remat == "full" else "set model.remat=full, "
    return (
        f"lower data.batch_size={data.batch_size}, raise optimizer.accumulate={accumulate}, "
        f"{remat}or use more devices with mesh.fsdp; plan.py says what a job needs, and "
        "plan.py --search_batch what fits"
    )


def load_tasks(settings: EvalConfig) -> harness.LoadedTasks:
    """Reads the tasks of lm-evaluation-harness to score; refuses those that cannot be."""
    harness.refuse_missing("eval.tasks")
    if jax.process_count() > 1:
        raise ConfigError(
            f"eval.tasks needs a single process, and this job has {jax.process_count()}; set it to "
            "() here, and score checkpoints by evaluate.py --tasks"
        )
    flags = "eval.tasks", "eval.task_path"
    return harness.load_tasks(settings.tasks, settings.task_path, flags=flags)


def make_task_scores(
    tasks: harness.LoadedTasks, experiment: Experiment, model, data: pipeline.Data, mesh
) -> Callable[..., dict[str, float]]:
    """What scores parameters of this run on tasks; see `harness.TaskScorer.scores`."""
    sized = model.config  # with the sizes inferred from the data
    run = LoadedRun(experiment, sized, model, {}, data.tokenizer, data.labels, mesh, (0,))
    settings = experiment.eval
    limit = settings.task_limit or None
    return harness.TaskScorer(run, tasks, batch_size=settings.batch_size, limit=limit).scores


def with_best_metric(
    experiment: Experiment, sets: Mapping[str, EvalSet], task_metrics: Sequence[str] = ()
) -> Experiment:
    """Sets checkpoint.best_metric if patience needs one; refuses a metric that is not measured.

    `task_metrics`: names of metrics besides those of the eval sets.
    """
    metric = experiment.checkpoint.best_metric
    if experiment.eval.patience and not metric:
        head = experiment.task.objective_spec.head
        has_classes = head in ("classifier", "token_classifier")
        metric, mode = ("accuracy", "max") if has_classes else ("loss", "min")
        metric = f"eval/{next(iter(sets))}/{metric}"
        checkpoint = replace(experiment.checkpoint, best_metric=metric, best_mode=mode)
        return replace(experiment, checkpoint=checkpoint)
    known = [
        f"eval/{name}/{metric}"
        for name, split in sets.items()
        for metric in metric_names(experiment.task, split, experiment.eval.metrics)
    ]
    known += task_metrics
    if metric and metric not in known:
        raise ConfigError(
            f"checkpoint.best_metric={metric} is not measured here.{did_you_mean(metric, known)} "
            f"Metrics of this run: {', '.join(known)}"
        )
    return experiment


def record_run(
    workdir: Path, experiment, model_config, data: pipeline.Data, *, resuming: bool
) -> list[str]:
    """Writes config, model and environment to the run directory; returns changes of the config."""
    as_dict = dataclasses.asdict(experiment)
    digests = dict(zip(run_directory.DIGESTS, (data.digest, data.tokenizer_digest), strict=True))
    config_digest = hashlib.sha256(repr(sorted(as_dict.items())).encode()).hexdigest()
    processes.refuse_disagreement({"the config": config_digest, **digests})
    record = {**as_dict.pop("run"), **as_dict, **digests}
    defaults = default.get_config().to_dict()
    changes = run_directory.record_config(workdir, record, resuming=resuming, defaults=defaults)
    run_directory.record_model(workdir, model_config, data.labels, data.text_pairs)
    run_directory.record_environment(workdir, data.description)
    if data.tokenizer is not None and processes.is_primary():
        data.tokenizer.save(workdir)
    return changes


def warn(text: str) -> None:
    """Prints a warning to standard error."""
    print(f"warning: {text}", file=sys.stderr)


def resumed_lines(workdir: Path, step: int, changes: Sequence[str], former: str) -> list[str]:
    """Log lines: where the run resumes, and which keys changed since then."""
    lines = [
        f"resuming {source_of(workdir) or workdir} at step {step}",
        *([former] if former else []),
    ]
    return [*lines, *(f"changed since then: {change}" for change in changes)]


def data_lines(data: pipeline.Data) -> list[str]:
    """Log lines on the size of the data, its classes and lengths, and examples left out."""
    described = data.description
    evals = ", ".join(f"{name} {rows:,}" for name, rows in described["eval_rows"].items())
    lines = [f"data: {described['train_rows']:,} rows to train on; held out: {evals}"]
    if described["batch_size"] > described["train_rows"]:
        effect = "a batch holds the training set more than once"
        if described["sorted_by_length"]:
            effect = "no batch is full, and the rest of its rows have weight 0"
        lines.append(f"data.batch_size={described['batch_size']} is more than all rows: {effect}")
    lines += unnamed_splits_lines(described["contents"])
    skipped = [f"{split} {count:,}" for split, count in described["bad_records"].items() if count]
    if skipped:
        lines.append(f"bad records: skipped {', '.join(skipped)}")
    lines += too_long.lines(described)
    if data.labels:
        lines.append(f"classes: {len(data.labels):,}: {shown(data.labels)}")
    if lengths := described.get("padded_to"):
        lines.append(f"batches are padded to one of: {', '.join(map(str, lengths))}")
    return lines


def shown(labels: Sequence[str]) -> str:
    """The first labels: enough to notice a heading or a wrong column."""
    more = f", and {len(labels) - SHOWN_CLASSES:,} more" if len(labels) > SHOWN_CLASSES else ""
    return ", ".join(labels[:SHOWN_CLASSES]) + more


def trainable_line(own, base, tuning) -> str:
    """A log line: how many of the model's parameters are trained."""
    counts = parameter_counts(own, base, tuning)
    return f"trainable: {counts['trainable']:,} of {counts['total']:,} parameters"


def main() -> None:
    config_path = config_flags.get_config_filename(flags.FLAGS["config"])
    workdir = WORKDIR.value or command_line.default_workdir(config_path)
    config = CONFIG.value.to_dict()
    quiet_orbax.silence()
    experiment, former_defaults = make_experiment(config, workdir)
    processes.join(experiment.failure.heartbeat_seconds, experiment.failure.join_seconds)
    try:
        with ending_together():
            scores = train(experiment, former_defaults, workdir)
    except KeyboardInterrupt:  # before the first step
        sys.exit(AT_ONCE)
    if processes.is_primary():
        print(run_summary.end_of_run(read_run(workdir)), file=sys.stderr)
        print(json.dumps({"step": saved_steps(workdir)[-1], **scores}))


if __name__ == "__main__":
    # Flags are not defined at import, because defining --config loads the default file.
    CONFIG = command_line.config_flag("configs/dates.py", hub_run.open_hub_run)
    WORKDIR = flags.DEFINE_string("workdir", "", "The run directory; default: runs/<config name>.")
    command_line.launch(main)
