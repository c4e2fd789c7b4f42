"""The training loop: step, read statuses, evaluate, save; and what happens on failure.

Three rules hold at every point of the loop:
- A step is saved or evaluated only after its status, and that of all earlier steps, is known.
- The batch of a step depends only on the step and on the rollbacks so far.
- Host and device exchange data only by explicit transfers (jax.transfer_guard).

A step's status says whether its loss and gradient were normal (training/anomalies.py).
"""

import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from checkpointing.checkpoint_manager import Checkpoints
from evaluation import eval_sets
from evaluation.evaluator import EvalSet, Evaluator
from experiment.schema import ConfigError
from experiment.sections import Experiment
from input_pipeline.pipeline import Data
from training.anomalies import OK, after_rollback, needs_rollback
from training.compilation import shapes_line
from training.device_memory import is_out_of_memory
from training.early_stopping import Patience, recorded_scores
from training.exits import DivergedError, EvaluationFailedError, StoppedError
from training.finetune import parameter_counts
from training.flops import row_flops
from training.kept_records import KeptRecords
from training.metric_writers import Reporter, TensorBoard
from training.prefetch import Batch, prefetch
from training.processes import is_primary
from training.pruning import record_head_scores
from training.run_events import EventLog, record_examples
from training.stop_signals import StopRequest
from training.throughput import Throughput, amount_in, unit_of
from training.time_limit import TimeLimit
from training.train_state import FrozenInputs, TrainSpec, TrainState
from training.transfer_guard import implicit_transfers
from training.watchdog import Watchdog

MAX_PENDING = 4  # steps whose status may be unread; the batch of each may be on the devices


class CutShortError(Exception):
    """An evaluation was cut short because the run is to stop."""


class StepResult(NamedTuple):
    """A dispatched step. Reading its metrics waits for the device."""

    step: int
    metrics: Mapping[str, jax.Array]


@dataclasses.dataclass(kw_only=True)
class Loop:
    """Trains a run up to its last step."""

    experiment: Experiment
    workdir: Path
    data: Data
    mesh: Mesh
    spec: TrainSpec
    train_step: Callable  # of `make_train_step`
    frozen_inputs: FrozenInputs
    abstract: TrainState  # shapes and shardings, to restore checkpoints
    initial_state: Callable[[], TrainState]
    evaluator: Evaluator
    eval_sets: Mapping[str, EvalSet]
    checkpoints: Checkpoints
    reporter: Reporter
    # Scores of tasks of lm-evaluation-harness: (params, what to call before a batch) -> scores
    task_scores: Callable[[dict, Callable[[], None]], dict[str, float]] | None = None

    def run(self, start: int) -> dict[str, float]:
        """Trains from the checkpoint of step `start`, or from the beginning if that is 0.

        Returns the scores of the evaluation after the last step. The last step is the config's, or
        the one at which the time limit or the patience is used up.
        """
        run = self.experiment.run
        self._begin(start)
        state = self._state_at(start)
        self._batches_left_out = int(state.anomalies.batches_left_out)
        step, batches = start, self._device_batches(start)
        pending: list[StepResult] = []  # dispatched, with their status unread
        scores, is_profiled, is_tracing = {}, False, False
        is_last = step == run.steps or bool(self._reason_to_end(step))
        with (
            StopRequest() as stop,
            self._events,
            self._watchdog,
            self._time_limit,
            implicit_transfers("disallow"),
        ):
            while not is_last:
                step += 1
                if step == run.profile_steps[0] and not is_profiled:
                    is_profiled = is_tracing = True  # once, even if a rollback repeats the step
                    jax.profiler.start_trace(str(self.workdir / TensorBoard.NAME))
                with self._throughput.waiting_for_data():
                    batch = next(batches)
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    state, metrics = self._step(state, batch)
                pending.append(StepResult(step, metrics))
                if step == run.profile_steps[1] and is_tracing:
                    is_tracing = False
                    jax.block_until_ready(metrics)
                    jax.profiler.stop_trace()
                self.reporter.progress(step)
                self._watchdog.beat()
                self.checkpoints.after_step(step)

                # Read statuses. The newest step stays unread as long as possible, so that the
                # device always has work queued.
                self._newest = step
                ready = pending[:-1] if self._is_time_to_read(pending) else []
                self._time_limit.update(ready)
                is_last = step == run.steps or self._time_limit.is_up
                stops = stop.is_for(step)
                evaluates = is_last or (
                    is_due(step, self.experiment.eval.every)
                    and self._time_limit.has_time_to_evaluate
                )
                saves = is_last or stops or is_due(step, self.experiment.checkpoint.every)
                if evaluates or saves:
                    ready = pending
                pending = pending[len(ready) :]
                if spike := self._read_results(ready, last_step=step if is_last else 0):
                    step, state = self._roll_back(spike)
                    batches, pending, is_last = self._device_batches(step), [], False
                    continue
                if evaluates or saves:
                    self._time_limit.update(ready)
                    is_last = is_last or (evaluates and self._time_limit.is_up)

                # Evaluate and save.
                with self._throughput.paused(), implicit_transfers("allow"):
                    scores, is_best = {}, False
                    if evaluates and not stops:
                        scores = self._try_to_evaluate(step, state, stop)
                        self._time_limit.evaluated()
                        is_best = self._patience.note(step, scores)
                        stops = stop.cuts_short
                        is_last = is_last or self._patience.is_out
                    if saves or stops or is_last or is_best:
                        self._events.progress(step)
                        self._restore_records(step)
                        self.checkpoints.save(step, state, scores)
                        record_head_scores(self.workdir, step, state.prune)
                        self._time_limit.saved(step)
                        self._watchdog.beat()
                if stops:
                    self.checkpoints.wait()
                    raise StoppedError(
                        f"stopped at step {step} of {run.steps}, which is saved; run the same "
                        "command again to continue from there"
                    )
            if is_tracing:
                jax.profiler.stop_trace()
            if reason := self._reason_to_end(step):
                self.reporter.log(f"ended at step {step} of {run.steps}: {reason}")
            if step == start:  # the run was complete before
                with implicit_transfers("allow"):
                    scores = self._evaluate(step, state, self._watchdog.beat)
        if not scores:
            self.checkpoints.wait()
            raise EvaluationFailedError(
                f"the last step, {step}, is saved, but its evaluation failed; run the same "
                "command again to evaluate it"
            )
        return scores | self._best()

    def _begin(self, start: int) -> None:
        run, checkpoint = self.experiment.run, self.experiment.checkpoint
        failure = self.experiment.failure
        self._watchdog = Watchdog(self.workdir, failure.watchdog_seconds, failure.watchdog_ends)
        unit, tuning = unit_of(self.spec.model.config), self.spec.tuning
        self._throughput = Throughput(unit)
        parameters = parameter_counts(self.abstract.params, self.frozen_inputs.base, tuning)
        self._events = EventLog(self.workdir, unit, start, self.reporter.log, parameters)
        self._run_files = KeptRecords(self.workdir, self.reporter.log) if is_primary() else None
        self._compiled_shapes, self._failed_evaluations = set(), 0
        self._merge = jax.jit(tuning.merge) if tuning.rank else tuning.merge
        self._time_limit = TimeLimit(self.workdir, run.time_limit, start=start)
        if run.time_limit:
            share = self._time_limit.share
            used = f", {share:.0%} used" if share else ""
            self.reporter.log(f"time limit: {run.time_limit:g} minutes{used}")
        metric, mode = checkpoint.best_metric, checkpoint.best_mode
        scores = recorded_scores(self.workdir, metric, start)
        self._patience = Patience(self.experiment.eval.patience, metric, mode, scores)

    def _restore_records(self, step: int) -> None:
        """Writes records again that were deleted while the run went on."""
        self.reporter.restore(step)
        if self._run_files is not None:
            self._run_files.restore()

    def _state_at(self, step: int) -> TrainState:
        return self.checkpoints.restore(step, self.abstract) if step else self.initial_state()

    def _reason_to_end(self, step: int) -> str:
        """Returns why a run is complete at this step although steps are left; "" if it is not."""
        run, patience = self.experiment.run, self._patience
        if step == run.steps:
            return ""
        if patience.is_out:
            return (
                f"{patience.metric} has not improved in the last {patience.limit} evaluations "
                "(eval.patience)"
            )
        if self._time_limit.is_up:
            warmup = self.experiment.optimizer.warmup_steps
            hint = f"; warm-up was not over, lower optimizer.warmup_steps={warmup}"
            return (
                f"the time_limit of {run.time_limit:g} minutes is used up"
                f"{hint if step < warmup else ''}"
            )
        return ""

    def _best(self) -> dict[str, float]:
        """Logs and returns the best checkpoint of a run with patience.

        It may be older than the last one.
        """
        best = self.checkpoints.best() if self._patience.limit else None
        if best is None:
            return {}
        step, score = best
        self.reporter.log(
            f"best: step {step}, {self._patience.metric} {score:.4g}; "
            "evaluate.py and generate.py use it with --step=best"
        )
        return {"best_step": step, "best_score": score}

    def _device_batches(self, step: int) -> Iterator[Batch]:
        """Returns an iterator over the batches of the steps after `step`."""
        first, stop = (each + self._batches_left_out for each in (step, self.experiment.run.steps))
        return prefetch(self.data.train_iterator(first, stop), self.mesh)

    def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, jax.Array]]:
        """Dispatches a step.

        The first step of a new batch shape also compiles; its time does not count for the
        throughput.
        """
        arguments = batch.device, self.frozen_inputs, self._time_limit.of_step(self.mesh)
        rows, shape = self.experiment.data.batch_size, _shape(batch.host)
        amount = amount_in(batch.host) * jax.process_count()
        self._events.count(amount)
        if shape in self._compiled_shapes:
            state, metrics = self.train_step(state, *arguments)
            frozen = self.spec.teacher
            if self.spec.task.objective_spec.needs_reference:
                frozen = self.spec  # the reference is another pass of the same model
            teacher = frozen and frozen.model.config
            flops = rows * row_flops(self.spec.model.config, self.spec.task, batch.host, teacher)
            self._throughput.count(amount, flops)
            return state, metrics
        described = shapes_line(batch.host, rows, self.data.bucket_of(batch.host))
        self.reporter.log(f"compiling the training step for {described}")
        jax.block_until_ready(state)
        with self._throughput.paused():
            state, metrics = self.train_step(state, *arguments)
            jax.block_until_ready(metrics)
        self._throughput.caught_up()
        self._compiled_shapes.add(shape)
        return state, metrics

    def _is_time_to_read(self, pending: list[StepResult]) -> bool:
        """Whether to read the statuses of all steps but the newest.

        They are read at log lines and every MAX_PENDING steps. With a time limit, they are read at
        once, because the used share of the limit is among the metrics.
        """
        limit = 1 if self.experiment.run.time_limit else MAX_PENDING
        logs = any(is_due(each.step, self.experiment.run.log_every) for each in pending[:-1])
        return logs or len(pending) > limit

    def _read_results(self, results: list[StepResult], last_step: int) -> StepResult | None:
        """Reads and reports results; returns the first that needs a rollback.

        Raises DivergedError for a result that ends the run. `last_step` is reported in any case.
        """
        for result in results:
            step, metrics = result
            status = jax.device_get(metrics["failure/status"])
            self._watchdog.beat()  # waiting for several steps takes several times as long
            if status != OK:
                if self._needs_rollback(step, metrics):
                    return result
            elif step == last_step or is_due(step, self.experiment.run.log_every):
                self._report(step, metrics)
        return None

    def _needs_rollback(self, step: int, metrics: Mapping[str, jax.Array]) -> bool:
        """Logs a failed step; returns whether to roll back. Raises DivergedError at the limit."""
        metrics = {name: value.item() for name, value in jax.device_get(metrics).items()}
        what = (
            f"the loss at step {step} is {metrics['failure/loss']:g} and its gradient's norm "
            f"{metrics['optim/grad_norm']:g}, {self._record_examples(step, metrics)}"
        )
        rolls_back = needs_rollback(self.experiment.failure, metrics, what)
        self.reporter.log(f"{what}: {'rolling back' if rolls_back else 'skipped'}")
        if not rolls_back:
            self._events.skipped(step, metrics["failure/loss"])
        return rolls_back

    def _report(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        metrics = dict(jax.device_get(metrics))
        counts = {name: metrics.pop(name) for name in list(metrics) if name.startswith("failure/")}
        if self.experiment.failure.skips:
            metrics |= {name: counts[name] for name in ("failure/skipped", "failure/rollbacks")}
        if bad := sum(self.data.description["bad_records"].values()):
            metrics["data/bad_records"] = bad
        rates = self._throughput.report(is_queued=step < self._newest)
        self.reporter.report(step, metrics | rates)
        self._events.progress(step)

    def _record_examples(self, step: int, metrics: Mapping[str, float]) -> str:
        """Writes the example ids of a failed step to failures.jsonl; returns some in words."""
        ids = self.data.train_ids(step - 1 + self._batches_left_out)
        process = jax.process_index() if jax.process_count() > 1 else None
        return record_examples(self.workdir, step, metrics["failure/loss"], ids, process)

    def _roll_back(self, spike: StepResult) -> tuple[int, TrainState]:
        """Goes back to the newest regular checkpoint, or to step 0; returns the step and the state.

        The checkpoint is at least `rollback_steps` older than the spike. The run then leaves out
        the batches from the checkpoint to the spike, or `rollback_batches` if that is more.
        """
        failure = self.experiment.failure
        with implicit_transfers("allow"):
            try:
                newest = spike.step - failure.rollback_steps
                step = self.checkpoints.regular_before(newest, self.reporter.log) or 0
            except ConfigError as error:
                raise DivergedError(
                    f"step {spike.step} is a loss spike, with nothing to roll back to: {error}"
                ) from None
            self._batches_left_out += max(failure.rollback_batches, spike.step - step)
            state = self._state_at(step)
        rollbacks = int(jax.device_get(spike.metrics["failure/rollbacks"])) + 1
        self.checkpoints.forget_after(step)
        self._patience.forget_after(step)
        self.reporter.rewind(step)
        self._events.rolled_back(spike.step, step)
        self.reporter.log(
            f"rolled back to step {step}; {self._batches_left_out:,} batches are left out so far"
        )
        anomalies = after_rollback(state.anomalies, rollbacks, self._batches_left_out)
        return step, state.replace(anomalies=anomalies)

    def _try_to_evaluate(self, step: int, state: TrainState, stop: StopRequest) -> dict[str, float]:
        """Returns the scores, or {} if the evaluation fails: this does not end the training."""

        def before_batch():
            self._watchdog.beat()
            if stop.cuts_short:
                raise CutShortError

        try:
            return self._evaluate(step, state, before_batch)
        except CutShortError:
            return {}
        except Exception as error:  # a full disk, a metric's library: anything
            self._failed_evaluations += 1
            self._events.evaluation_failed(step, error)
            reason = str(error)
            if is_out_of_memory(error):
                size = self.experiment.eval.batch_size
                reason = f"out of memory: lower eval.batch_size={size}; plan.py says what fits"
            else:
                traceback.print_exc(file=sys.stderr)
            self.reporter.log(f"the evaluation at step {step} failed ({reason}); training goes on")
            self.reporter.report(step, {"eval/failures": self._failed_evaluations})
            return {}

    def _evaluate(
        self, step: int, state: TrainState, before_batch: Callable[[], None]
    ) -> dict[str, float]:
        evaluator, sets = self.evaluator, self.eval_sets
        params = self._merge(state.eval_params, self.frozen_inputs.base)
        try:
            scores = eval_sets.evaluate(
                evaluator,
                params,
                sets,
                show_progress=is_primary(),
                keep_bars=False,
                between=before_batch,
            )
            if self.task_scores:
                scores |= self.task_scores(params, before_batch)
            self.reporter.report(step, scores)
            prefix, count = self.workdir / "samples" / f"{step:08d}", self.experiment.eval.samples
            eval_sets.write_samples(prefix, evaluator, params, sets, self.data, count)
        finally:
            evaluator.release()
        return scores


def _shape(batch: Mapping[str, np.ndarray]) -> tuple:
    return tuple(array.shape for array in batch.values())


def is_due(step: int, every: int) -> bool:
    """Whether `step` is one of every `every` steps; 0: never."""
    return every > 0 and step % every == 0
