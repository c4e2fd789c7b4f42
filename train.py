"""Trains a model: python train.py --config=configs/x.py[:arch] --workdir=DIR --config.a.b=v

With no flags at all it trains a small Transformer to read dates (configs/dates.py). The same
command run again continues where the last checkpoint was made.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import optax
from absl import flags
from ml_collections import config_flags

from checkpointing import provenance, quiet_orbax, run_directory
from checkpointing.checkpoint_manager import Checkpoints, saved_steps
from configs import default
from evaluation import eval_sets
from evaluation.evaluator import Evaluator, HeldOut, measure_names
from evaluation.metrics import signatures
from experiment import command_line, sections
from experiment.schema import ConfigError, did_you_mean
from experiment.sections import Experiment
from input_pipeline import pipeline, too_long
from pretrained.source_path import refuse_published_directory
from training import processes
from training.compilation import keep_programs
from training.early_stopping import Patience, recorded_scores
from training.exits import EndedError
from training.finetune import choose, rate_scales
from training.flops import row_flops
from training.infer_sizes import fit_to_data
from training.loop import Loop
from training.mesh import check_batch, check_offload, make_mesh
from training.metric_writers import Reporter, parameter_table
from training.model_for_task import make_model
from training.optimizer import make_optimizer
from training.schedules import learning_rate
from training.step import (
    Fixed,
    Teacher,
    TrainState,
    abstract_params,
    abstract_state,
    make_train_step,
)
from training.stop_signals import AT_ONCE
from training.time_limit import TimeLimit

SHOWN_CLASSES = 20


def train_and_evaluate(config: Mapping[str, Any], workdir: str) -> dict[str, float]:
    """Runs a whole job; returns the last evaluation's metrics."""
    experiment = sections.from_mapping(config)
    run, task = experiment.run, experiment.task
    refuse_published_directory("--workdir", workdir)  # or its files would be written over
    workdir, begun = run_directory.prepare(workdir), ""
    if saved_steps(workdir):
        config, begun = run_directory.as_begun(workdir, config, default.get_config().to_dict())
        experiment = sections.from_mapping(config)
    keep_programs(run.compilation_cache)
    mesh = make_mesh(experiment.mesh)
    check_batch(
        "data.batch_size", experiment.data.batch_size, mesh, experiment.optimizer.accumulate
    )
    check_batch("eval.batch_size", experiment.eval.batch_size, mesh)
    check_offload(experiment.optimizer, mesh)
    provenance.refuse_missing(experiment)

    # Data
    data = pipeline.load(
        experiment.data,
        objective=task.objective,
        hiding=experiment.hiding,
        seed=run.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    model_config = fit_to_data(experiment.model, data, run.init_from)
    sets = eval_sets.hold_out(data.eval_names, data, experiment, mesh)
    experiment = with_best_metric(experiment, sets)

    # Model
    model = make_model(model_config, task)
    schedule = learning_rate(experiment.optimizer, run.steps, model_config.width)
    scales = rate_scales(experiment.finetune, model_config)

    def optimizer_with(schedule: optax.Schedule) -> optax.GradientTransformation:
        return make_optimizer(experiment.optimizer, schedule, scales)

    optimizer = optimizer_with(schedule)

    with (
        run_directory.lock(workdir),
        jax.set_mesh(mesh),
        Checkpoints(workdir, experiment.checkpoint) as checkpoints,
    ):
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

        # From other runs: parameters to start from or to adapt, a teacher
        if not start:
            provenance.refuse_other_sinusoids(run.init_from, model_config)
        batch = data.train_batch(0)
        whole = abstract_params(model, task, batch, mesh)
        taken = provenance.take(experiment, whole, workdir, data, resuming=start > 0)
        teacher = provenance.load_teacher(
            experiment, model_config, data, workdir, resuming=start > 0
        )
        tuning = choose(experiment.finetune, whole, taken.new)
        fixed = Fixed(taken.base(tuning), teacher.params if teacher else {})
        if not start:
            provenance.record(workdir, experiment, tuning, fixed.base, teacher)

        # State: born sharded, or restored, or begun from another run's parameters
        abstract, init = abstract_state(
            model, task, optimizer, experiment.optimizer, batch, mesh, tuning, experiment.failure
        )

        def state_at(step: int) -> TrainState:
            if step:
                return checkpoints.restore(step, abstract)
            return taken.into(init(jax.random.key(run.seed)), tuning)

        with Reporter(
            workdir, start, run.steps, run.wandb_project, primary=processes.is_primary()
        ) as reporter:
            for line in resumed(workdir, start, changes, begun) if start else taken.lines:
                reporter.log(line)
            for line in describe(data.description):
                reporter.log(line)
            if data.labels:
                reporter.log(f"classes: {len(data.labels):,}: {shown(data.labels)}")
            if lengths := data.description.get("padded_to"):
                reporter.log(f"batches are padded to one of: {', '.join(map(str, lengths))}")
            reporter.log(parameter_table(whole))
            reporter.log(trainable(abstract.params, fixed.base, tuning))

            # Evaluation
            evaluator = Evaluator(
                model, model_config, task, experiment.eval, data.tokenizer, data.labels
            )
            for measure, signature in signatures(experiment.eval.measures).items():
                reporter.log(f"{measure}: {signature}")

            merge = jax.jit(tuning.whole) if tuning.rank else tuning.whole

            def evaluate(step: int, state: TrainState, between) -> dict[str, float]:
                params = merge(state.eval_params, fixed.base)
                scores = eval_sets.measure(
                    evaluator,
                    params,
                    sets,
                    show_progress=processes.is_primary(),
                    keep_bars=False,
                    between=between,
                )
                reporter.report(step, scores)
                write_samples(workdir, step, params, evaluator, sets, data, experiment.eval.samples)
                return scores

            # The loop
            train_step = make_train_step(
                model,
                task,
                optimizer,
                experiment.optimizer,
                schedule,
                run.seed,
                abstract,
                tuning,
                teacher and Teacher(teacher.model, teacher.experiment.task),
                experiment.failure,
                optimizer_with,
            )
            time_limit = TimeLimit(workdir, run.time_limit, start=start)
            if run.time_limit:
                used = f", {time_limit.share:.0%} used" if time_limit.share else ""
                reporter.log(f"time limit: {run.time_limit:g} minutes{used}")
            metric, mode = experiment.checkpoint.best_metric, experiment.checkpoint.best_mode
            scores = recorded_scores(workdir, metric, start)
            loop = Loop(
                experiment,
                workdir,
                data,
                mesh,
                checkpoints,
                reporter,
                train_step=lambda state, batch, time: train_step(state, batch, fixed, time),
                evaluate=evaluate,
                state_at=state_at,
                # Of the whole batch, of which this process may have a part.
                flops_of=lambda batch: (
                    experiment.data.batch_size
                    * row_flops(model_config, task, batch, teacher and teacher.model_config)
                ),
                time_limit=time_limit,
                patience=Patience(experiment.eval.patience, metric, mode, scores),
            )
            return loop.run(state_at(start))


def with_best_metric(experiment: Experiment, sets: Mapping[str, HeldOut]) -> Experiment:
    """With the metric by which a run is judged, if it has patience and names none.

    Refuses one that is not measured.
    """
    metric = experiment.checkpoint.best_metric
    if experiment.eval.patience and not metric:
        has_classes = experiment.task.objective in ("classify_text", "classify_images")
        measure, mode = ("accuracy", "max") if has_classes else ("loss", "min")
        metric = f"eval/{next(iter(sets))}/{measure}"
        checkpoint = replace(experiment.checkpoint, best_metric=metric, best_mode=mode)
        return replace(experiment, checkpoint=checkpoint)
    known = [
        f"eval/{name}/{measure}"
        for name, split in sets.items()
        for measure in measure_names(experiment.task, split, experiment.eval.measures)
    ]
    if metric and metric not in known:
        raise ConfigError(
            f"checkpoint.best_metric={metric} is not measured here.{did_you_mean(metric, known)} "
            f"Measured are: {', '.join(known)}"
        )
    return experiment


def record_run(
    workdir: Path, experiment, model_config, data: pipeline.Data, *, resuming: bool
) -> list[str]:
    """Records the run in its directory; returns what changed since it began."""
    as_dict = dataclasses.asdict(experiment)
    digests = dict(zip(run_directory.DIGESTS, (data.digest, data.tokenizer_digest), strict=True))
    config_digest = hashlib.sha256(repr(sorted(as_dict.items())).encode()).hexdigest()
    processes.refuse_disagreement({"the config": config_digest, **digests})
    record = {**as_dict.pop("run"), **as_dict, **digests}
    defaults = default.get_config().to_dict()
    changes = run_directory.record_config(workdir, record, resuming=resuming, defaults=defaults)
    run_directory.record_model(workdir, model_config, data.labels)
    run_directory.record_environment(workdir, data.description)
    if data.tokenizer is not None and processes.is_primary():
        data.tokenizer.save(workdir)
    return changes


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def resumed(workdir: Path, step: int, changes: Sequence[str], begun: str = "") -> list[str]:
    lines = [f"resuming {workdir} at step {step}", *([begun] if begun else [])]
    return [*lines, *(f"changed since then: {change}" for change in changes)]


def describe(data: Mapping[str, Any]) -> list[str]:
    """Lines on what is trained on, and on what of it could not be used as it is."""
    held_out = ", ".join(f"{name} {rows:,}" for name, rows in data["eval_rows"].items())
    lines = [f"data: {data['train_rows']:,} rows to train on; held out: {held_out}"]
    skipped = [f"{split} {count:,}" for split, count in data["bad_records"].items() if count]
    if skipped:
        lines.append(f"bad records: skipped {', '.join(skipped)}")
    return [*lines, *too_long.lines(data)]


def shown(labels: Sequence[str]) -> str:
    """The first of them, so that a heading or a wrong column is seen."""
    more = f", and {len(labels) - SHOWN_CLASSES:,} more" if len(labels) > SHOWN_CLASSES else ""
    return ", ".join(labels[:SHOWN_CLASSES]) + more


def trainable(own, base, tuning) -> str:
    """How many parameters are trained, of how many that the model is computed from."""
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    trained, kept = tuning.split(own)
    return f"trained: {count(trained):,} of {count((trained, kept, base)):,} parameters"


def write_samples(workdir, step, params, evaluator, sets, data, count: int) -> None:
    if not count or jax.process_count() > 1:
        return
    (workdir / "samples").mkdir(exist_ok=True)
    for name, split in sets.items():
        text = evaluator.samples(params, split, data.eval_examples(name, count))
        (workdir / "samples" / f"{step:08d}_{name}.txt").write_text(text)


def main() -> None:
    config_path = config_flags.get_config_filename(flags.FLAGS["config"])
    workdir = WORKDIR.value or command_line.default_workdir(config_path)
    config = CONFIG.value.to_dict()
    quiet_orbax.silence()
    processes.join(sections.from_mapping(config).failure.heartbeat_seconds)
    try:
        scores = train_and_evaluate(config, workdir)
    except EndedError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before the first step
        sys.exit(AT_ONCE)
    if processes.is_primary():
        print(json.dumps({"step": saved_steps(workdir)[-1], **scores}))


if __name__ == "__main__":
    # Here and not at import, because defining --config loads the default file.
    CONFIG = command_line.config_flag("configs/dates.py")
    WORKDIR = flags.DEFINE_string(
        "workdir", "", "Where the run lives; default: runs/<config name>."
    )
    command_line.launch(main)
