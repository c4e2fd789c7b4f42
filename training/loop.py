"""The loop of a run: step, look, evaluate, save; and what follows when something goes wrong."""

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from checkpointing.checkpoint_manager import Checkpoints
from experiment.schema import ConfigError
from experiment.sections import Experiment
from input_pipeline.pipeline import Data
from model.config import TransformerConfig
from training.anomalies import NOT_FINITE, OK, SPIKE, after_rollback
from training.early_stopping import Patience
from training.exits import DivergedError, EvaluationFailedError, StoppedError
from training.mesh import put_batch
from training.metric_writers import Reporter
from training.step import TrainState
from training.stop_signals import StopRequest
from training.throughput import Throughput
from training.time_limit import TimeLimit
from training.watchdog import Watchdog

NAMED_EXAMPLES = 8  # of a step at fault; all of them are in failures.jsonl


class CutShortError(Exception):
    """An evaluation was left off because the run is to stop."""


@dataclasses.dataclass
class Loop:
    """Takes a run from a state to its last step."""

    experiment: Experiment
    workdir: Path
    data: Data
    mesh: Mesh
    checkpoints: Checkpoints
    reporter: Reporter
    train_step: Callable  # (state, batch, time used) -> (state, metrics)
    # (step, state, what to call between batches) -> scores
    evaluate: Callable[[int, TrainState, Callable[[], None]], dict[str, float]]
    state_at: Callable[[int], TrainState]  # of a checkpoint, or of the beginning at 0
    flops_of: Callable[[Mapping[str, np.ndarray]], int]
    time_limit: TimeLimit
    patience: Patience

    def run(self, state: TrainState) -> dict[str, float]:
        """Returns the scores of the evaluation after the last step.

        That is the config's, or the one at which the time or the patience was at an end.
        """
        run, failure = self.experiment.run, self.experiment.failure
        self._throughput = Throughput(unit_of(self.experiment.model))
        self._shapes, self._failed_evaluations = set(), 0
        self._left_out = int(state.anomalies.batches_left_out)
        start = step = int(state.step)
        batches, unsettled, scores = self._batches(step), None, {}
        profiled = traces = False  # begun, whether ended or not; going on
        watchdog = Watchdog(self.workdir, failure.watchdog_seconds, failure.watchdog_ends)
        is_last = step == run.steps or bool(self._ends_early(step))
        with StopRequest() as stop, watchdog, self.time_limit:
            while not is_last:
                step += 1
                if step == run.profile_steps[0] and not profiled:
                    profiled = traces = True  # once, though a rollback may come by again
                    jax.profiler.start_trace(str(self.workdir / "profile"))
                with self._throughput.waiting_for_data():
                    batch = next(batches)
                state, metrics = self._step(state, batch)
                if step == run.profile_steps[1] and traces:
                    traces = False
                    jax.block_until_ready(metrics)
                    jax.profiler.stop_trace()
                self.reporter.progress(step)
                watchdog.beat()
                self.checkpoints.after_step(step)

                if unsettled:
                    self.time_limit.note(unsettled[1])
                is_last = step == run.steps or self.time_limit.is_up
                stops = stop.is_for(step)
                evaluates = is_last or (
                    is_due(step, self.experiment.eval.every)
                    and self.time_limit.has_time_to_evaluate
                )
                saves = is_last or stops or is_due(step, self.experiment.checkpoint.every)
                # What a step did is read one step late, so that the device always has work
                # queued; but it is known before anything is made of it.
                self._newest = step
                known = [each for each in (unsettled, (step, metrics)) if each]
                unsettled = None if evaluates or saves else known.pop()
                last = step if is_last else 0
                if spike := next((each for each in known if self._spikes(*each, last)), None):
                    state = self._go_back(*spike)
                    step, unsettled, is_last = int(state.step), None, False
                    batches = self._batches(step)
                    continue
                if not unsettled:
                    self.time_limit.note(metrics)
                    is_last = is_last or (evaluates and self.time_limit.is_up)
                with self._throughput.paused():
                    scores, is_best = {}, False
                    if evaluates and not stops:
                        scores = self._scores(step, state, stop, watchdog)
                        self.time_limit.evaluated()
                        is_best = self.patience.note(step, scores)
                        stops = stop.cuts_short
                        is_last = is_last or self.patience.is_out
                    if saves or stops or is_last or is_best:
                        self.checkpoints.save(step, state, scores)
                        self.time_limit.saved(step)
                        watchdog.beat()
                if stops:
                    self.checkpoints.wait()
                    raise StoppedError(
                        f"stopped at step {step} of {run.steps}, which is saved; the same command "
                        "run again goes on from there"
                    )
            if traces:
                jax.profiler.stop_trace()
            if reason := self._ends_early(step):
                self.reporter.log(f"ended at step {step} of {run.steps}: {reason}")
            if step == start:  # only evaluated again
                scores = self.evaluate(step, state, watchdog.beat)
        if not scores:
            self.checkpoints.wait()
            raise EvaluationFailedError(
                f"step {step}, the last, is saved, but its evaluation failed; the same "
                "command run again evaluates it"
            )
        return scores | self._best()

    def _ends_early(self, step: int) -> str:
        """Why a run at this step is complete although steps are left; "" if it is not."""
        run, patience = self.experiment.run, self.patience
        if step == run.steps:
            return ""
        if patience.is_out:
            return (
                f"{patience.metric} has not improved in the last {patience.limit} evaluations "
                "(eval.patience)"
            )
        if self.time_limit.is_up:
            warmup = self.experiment.optimizer.warmup_steps
            hint = f"; warm-up was not over, lower optimizer.warmup_steps={warmup}"
            return (
                f"the time_limit of {run.time_limit:g} minutes is used up"
                f"{hint if step < warmup else ''}"
            )
        return ""

    def _best(self) -> dict[str, float]:
        """Which checkpoint is the best, of a run that may have ended after it."""
        best = self.checkpoints.best() if self.patience.limit else None
        if best is None:
            return {}
        step, score = best
        self.reporter.log(
            f"best: step {step}, {self.patience.metric} {score:.4g}; "
            "evaluate.py and generate.py use it with --step=best"
        )
        return {"best_step": step, "best_score": score}

    def _batches(self, step: int) -> Iterator[Mapping[str, np.ndarray]]:
        """Those of the steps after this one."""
        first, end = step + self._left_out, self.experiment.run.steps + self._left_out
        return self.data.train_iterator(first, end)

    def _step(self, state: TrainState, batch) -> tuple[TrainState, Mapping[str, jax.Array]]:
        shape = tuple(array.shape for array in batch.values())
        if shape in self._shapes:
            state, metrics = self.train_step(state, *self._arguments(batch))
            rows_or_tokens = amount_in(batch) * jax.process_count()
            self._throughput.count(rows_or_tokens, self.flops_of(batch))
            return state, metrics
        rows = self.experiment.data.batch_size
        shape_name = compiled_for(batch, rows, self.data.bucket_of(batch))
        self.reporter.log(f"compiling the training step for {shape_name}")
        # That takes time that says nothing about the steps to come.
        jax.block_until_ready(state)
        with self._throughput.paused():
            state, metrics = self.train_step(state, *self._arguments(batch))
            jax.block_until_ready(metrics)
        self._throughput.caught_up()
        self._shapes.add(shape)
        return state, metrics

    def _arguments(self, batch) -> tuple:
        return put_batch(batch, self.mesh), self.time_limit.of_step(self.mesh)

    def _spikes(self, step: int, metrics: Mapping[str, jax.Array], last: int) -> bool:
        """Reports what a step did; whether the run has to go back for it, or raises if it ends."""
        run, failure = self.experiment.run, self.experiment.failure
        status = int(metrics["failure/status"])
        if status == OK:
            if step == last or step % run.log_every == 0:
                self._report(step, metrics)
            return False
        metrics = {name: value.item() for name, value in jax.device_get(metrics).items()}
        what = (
            f"the loss at step {step} is {metrics['failure/loss']:g} and its gradient's norm "
            f"{metrics['optim/grad_norm']:g}, {self._record_examples(step, metrics)}"
        )
        if status == NOT_FINITE and failure.nonfinite == "stop":
            raise DivergedError(
                f"{what}; lower optimizer.learning_rate, or set failure.nonfinite=skip"
            )
        goes_back = status == SPIKE and failure.spike == "rollback"
        if metrics["failure/rollbacks" if goes_back else "failure/in_a_row"] >= failure.limit:
            raise DivergedError(
                f"{what}, after {failure.limit} {'rollbacks' if goes_back else 'steps in a row'} "
                "(failure.limit); lower optimizer.learning_rate"
            )
        self.reporter.log(f"{what}: {'going back' if goes_back else 'skipped'}")
        return goes_back

    def _report(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        metrics = dict(jax.device_get(metrics))
        counts = {name: metrics.pop(name) for name in list(metrics) if name.startswith("failure/")}
        if self.experiment.failure.skips:
            metrics |= {name: counts[name] for name in ("failure/skipped", "failure/rollbacks")}
        if bad := sum(self.data.description["bad_records"].values()):
            metrics["data/bad_records"] = bad
        rates = self._throughput.report(is_queued=step < self._newest)
        self.reporter.report(step, metrics | rates)

    def _record_examples(self, step: int, metrics: Mapping[str, float]) -> str:
        """Which examples a step was made of: some in words, all in failures.jsonl."""
        ids = self.data.train_ids(step - 1 + self._left_out)
        own = f"-{jax.process_index()}" if jax.process_count() > 1 else ""
        name = f"failures{own}.jsonl"
        record = {"step": step, "loss": str(metrics["failure/loss"]), "examples": ids}
        with (self.workdir / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
        more = f" and {len(ids) - NAMED_EXAMPLES} more in {name}" if ids[NAMED_EXAMPLES:] else ""
        return f"from the examples {', '.join(ids[:NAMED_EXAMPLES])}{more}"

    def _go_back(self, spike: int, metrics: Mapping[str, jax.Array]) -> TrainState:
        """The state of an older checkpoint, and from there on with other batches."""
        failure = self.experiment.failure
        latest = spike - failure.rollback_steps
        try:
            step = self.checkpoints.regular_before(latest, self.reporter.log) or 0
        except ConfigError as error:
            raise DivergedError(
                f"step {spike} leaps, with nothing to go back to: {error}"
            ) from None
        self._left_out += max(failure.rollback_batches, spike - step)
        state = self.state_at(step)
        rollbacks = int(metrics["failure/rollbacks"]) + 1
        self.checkpoints.forget_after(step)
        self.patience.forget_after(step)
        self.reporter.rewind(step)
        self.reporter.log(
            f"back at step {step}; {self._left_out:,} batches are left out from here in all"
        )
        return state.replace(anomalies=after_rollback(state.anomalies, rollbacks, self._left_out))

    def _scores(self, step: int, state, stop: StopRequest, watchdog: Watchdog) -> dict[str, float]:
        """None of them if the evaluation failed: that is no reason for training to end."""

        def between():
            watchdog.beat()
            if stop.cuts_short:
                raise CutShortError

        try:
            return self.evaluate(step, state, between)
        except CutShortError:
            return {}
        except Exception as error:  # a full disk, a metric's library: whatever it may be
            self._failed_evaluations += 1
            traceback.print_exc(file=sys.stderr)
            self.reporter.log(f"the evaluation at step {step} failed ({error}); training goes on")
            self.reporter.report(step, {"eval/failures": self._failed_evaluations})
            return {}


def compiled_for(batch: Mapping[str, np.ndarray], rows: int, bucket: tuple[int, int] | None) -> str:
    """The shapes that a step is compiled for, and why there is more than one."""
    sides = [name for name in ("encoder_inputs", "inputs", "images") if name in batch]
    shapes = [" x ".join(map(str, (rows, *batch[name].shape[1:]))) for name in sides]
    shown = ", ".join(f"{name} {shape}" for name, shape in zip(sides, shapes, strict=True))
    if bucket and bucket[1] > 1:
        shown += " (bucket {} of {})".format(*bucket)
    return shown


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def unit_of(model: TransformerConfig) -> str:
    """What a run's speed is counted in."""
    return "images" if model.input == "patches" else "tokens"


def amount_in(batch: Mapping[str, np.ndarray]) -> int:
    """Images, or real tokens on all sides, of this process's rows."""
    if "images" in batch:
        return len(batch["images"])
    sides = [name for name in ("", "encoder_") if f"{name}inputs" in batch]
    return sum(
        np.count_nonzero(batch.get(f"{side}segment_ids", batch[f"{side}inputs"])) for side in sides
    )
