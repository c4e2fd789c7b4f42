"""The loop with a step that computes nothing: rollbacks, what is read when, and transfers."""

import contextlib
import dataclasses
import re
import types

import jax
import numpy as np
import pytest

from checkpointing.checkpoint_manager import Checkpoints, saved_steps
from configs import digits
from evaluation.evaluator import EvalSet
from experiment.sections import from_mapping
from tests.runs import tiny
from training import loop as loop_module
from training import prefetch
from training.anomalies import NOT_FINITE, OK, SPIKE, AnomalyState
from training.exits import DivergedError
from training.finetune import TRAIN_ALL
from training.loop import MAX_PENDING, Loop
from training.mesh import make_mesh
from training.run_events import read_events, surviving_progress
from training.train_state import NO_FROZEN_INPUTS, TrainState

MOST_STEPS = 100
ROLLBACK = dict(nonfinite="skip", spike="rollback", rollback_steps=2, rollback_batches=3, limit=9)


class Reporter:
    """Keeps what a run says."""

    def __init__(self):
        self.lines, self.reported = [], {}

    def log(self, text):
        self.lines.append(text)

    def report(self, step, metrics):
        self.reported.setdefault(step, {}).update(metrics)

    def restore(self, step):
        pass

    def rewind(self, step):
        self.reported = {each: metrics for each, metrics in self.reported.items() if each <= step}

    def progress(self, step):
        pass


class Data:
    """Batch n holds the number n."""

    description = types.MappingProxyType({"bad_records": {}})

    def train_iterator(self, start, stop):
        return ({"inputs": np.full((4, 2), n, np.int32)} for n in range(start, stop))

    def train_ids(self, number):
        return [f"fake:{number}"]

    def bucket_of(self, batch):
        return None


class FakeRun:
    """A run whose parameters are the numbers of its batches; `statuses` are by batch."""

    def __init__(self, workdir, steps=12, statuses=None, **sections):
        checkpoint = dict(every=2, keep=99) | sections.pop("checkpoint", {})
        failure = ROLLBACK | sections.pop("failure", {})
        config = tiny(
            digits,
            steps,
            checkpoint=checkpoint,
            failure=failure,
            eval=dict(every=0, samples=0),
            **sections,
        )
        config["log_every"] = sections.get("log_every", 1)
        self.experiment, self.workdir = from_mapping(config), workdir
        self.mesh = make_mesh(self.experiment.mesh)
        self.statuses, self.steps = statuses or {}, steps
        self.given, self.reporter = [], Reporter()

    def initial_state(self):
        zero = np.zeros((), np.int32)
        losses = np.zeros(self.experiment.failure.spike_window, np.float32)
        state = TrainState(
            step=zero,
            params={"batches": np.full(MOST_STEPS, -1, np.int32)},
            opt_state={},
            ema=None,
            anomalies=AnomalyState(zero, zero, losses, zero, zero),
        )
        return self.put(state)

    def put(self, tree):
        sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.device_put(tree, sharding)

    def train_step(self, state, batch, frozen_inputs, time_used):
        state, batch = jax.device_get((state, batch))
        number = int(batch["inputs"][0, 0])
        self.given.append(number)
        status = self.statuses.get(number, OK)
        batches, is_ok = state.params["batches"].copy(), status == OK
        if is_ok:
            batches[int(state.step)] = number
        anomalies = state.anomalies
        in_a_row = np.int32(0 if is_ok else anomalies.in_a_row + 1)
        skipped = np.int32(anomalies.skipped + (not is_ok))
        anomalies = anomalies.replace(skipped=skipped, in_a_row=in_a_row)
        metrics = {
            "train/loss": np.float32(number),
            "optim/grad_norm": np.float32(1),
            "failure/status": np.int32(status),
            "failure/loss": np.float32(number),
            "failure/skipped": skipped,
            "failure/in_a_row": in_a_row,
            "failure/rollbacks": anomalies.rollbacks,
        }
        new = dataclasses.replace(
            state, step=np.int32(state.step + 1), params={"batches": batches}, anomalies=anomalies
        )
        return self.put((new, metrics))

    def run(self, start=0):
        evaluator = types.SimpleNamespace(
            evaluate=lambda params, eval_set: {"loss": 1.0}, release=lambda: None
        )
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self.initial_state(),
        )
        model = types.SimpleNamespace(config=self.experiment.model.resolve())
        with Checkpoints(self.workdir, self.experiment.checkpoint) as checkpoints:
            loop = Loop(
                experiment=self.experiment,
                workdir=self.workdir,
                data=Data(),
                mesh=self.mesh,
                spec=types.SimpleNamespace(
                    tuning=TRAIN_ALL, teacher=None, model=model, task=self.experiment.task
                ),
                train_step=self.train_step,
                frozen_inputs=NO_FROZEN_INPUTS,
                abstract=abstract,
                initial_state=self.initial_state,
                evaluator=evaluator,
                eval_sets={"held_out": EvalSet([], 0, False)},
                checkpoints=checkpoints,
                reporter=self.reporter,
            )
            loop.run(start)
            self.state = jax.device_get(checkpoints.restore(self.steps, abstract))
        return self.state.params["batches"].tolist()[: self.steps]

    @property
    def rollbacks(self):
        """The steps that the run went back to."""
        lines = [re.match(r"rolled back to step (\d+);", line) for line in self.reporter.lines]
        return [int(line[1]) for line in lines if line]


@pytest.fixture(autouse=True)
def no_flops(monkeypatch):
    monkeypatch.setattr(loop_module, "row_flops", lambda *_: 1)


def test_a_run_without_anomalies_takes_one_batch_after_another(tmp_path):
    run = FakeRun(tmp_path)
    assert run.run() == list(range(12)) == run.given
    assert sorted(run.reporter.reported) == list(range(1, 13))
    assert saved_steps(tmp_path) == [2, 4, 6, 8, 10, 12]


def test_a_rollback_skips_at_least_the_batches_up_to_the_spike(tmp_path):
    """rollback_batches=1 is less than the distance from step 4 to the spike at step 7."""
    run = FakeRun(tmp_path, statuses={6: SPIKE}, failure=dict(rollback_batches=1))
    assert run.run() == [0, 1, 2, 3, *range(7, 15)]
    assert run.rollbacks == [4]
    assert run.state.anomalies.batches_left_out == 3
    assert "3 batches are left out so far" in "".join(run.reporter.lines)


def test_a_rollback_skips_rollback_batches_if_that_is_more(tmp_path):
    run = FakeRun(tmp_path, statuses={6: SPIKE}, failure=dict(rollback_batches=5))
    assert run.run() == [0, 1, 2, 3, *range(9, 17)]
    assert run.state.anomalies.batches_left_out == 5


def test_skipped_steps_and_rollbacks_are_recorded_as_events(tmp_path):
    """Batch 2 is not finite at step 3; batch 6 spikes at step 7, back to step 4."""
    run = FakeRun(tmp_path, statuses={2: NOT_FINITE, 6: SPIKE})
    run.run()
    events = read_events(tmp_path / "events.jsonl")
    told = [(e["event"], e["step"]) for e in events if e["event"] != "progress"]
    assert told == [("start", 0), ("skipped", 3), ("rollback", 7), ("end", 12)]
    assert [e["to"] for e in events if e["event"] == "rollback"] == [4]
    progress = surviving_progress(events)
    # A skipped step has no report, but it has seen its tokens: 8 of every batch but batch 0,
    # whose tokens are all padding.
    assert {e["step"]: e["images"] for e in progress if "images" in e} == {
        step: 8 * (step - 1) for step in range(1, 13) if step != 3
    }


def test_two_rollbacks_in_a_row(tmp_path):
    """Batch 6 spikes at step 7, and batch 8 at step 6: back to step 4, where the run is left."""
    run = FakeRun(tmp_path, statuses={6: SPIKE, 8: SPIKE})
    assert run.run() == [0, 1, 2, 3, *range(10, 18)]
    assert run.rollbacks == [4, 4]
    assert (run.state.anomalies.rollbacks, run.state.anomalies.batches_left_out) == (2, 6)
    assert run.reporter.reported[12]["failure/rollbacks"] == 2
    assert [run.reporter.reported[step]["train/loss"] for step in (4, 5)] == [3, 10]


def test_the_second_rollback_may_go_back_further(tmp_path):
    run = FakeRun(tmp_path, statuses={6: SPIKE, 7: SPIKE})
    # Step 5 takes batch 7 and spikes: step 4 is less than two steps before it, step 2 is not.
    assert run.run() == [0, 1, *range(8, 18)]
    assert run.rollbacks == [4, 2]


@pytest.mark.parametrize(
    ("spike", "back"),
    [(5, 2), (6, 4), (7, 4), (2, 0), (3, 0), (4, 2)],
)
def test_a_rollback_is_at_least_so_many_steps(tmp_path, spike, back):
    """With rollback_steps=2: to the newest of 0, 2, 4, ... that is at most spike - 2."""
    run = FakeRun(tmp_path, statuses={spike - 1: SPIKE})
    run.run()
    assert run.rollbacks == [back]


def test_rollbacks_end_at_their_limit(tmp_path):
    every = dict.fromkeys(range(5, 60), SPIKE)
    run = FakeRun(tmp_path, statuses=every, failure=dict(limit=2))
    with pytest.raises(DivergedError, match=r"after 2 rollbacks \(failure\.limit\)"):
        run.run()
    assert len(run.rollbacks) == 2


def test_checkpoints_after_a_rollback_step_are_replaced(tmp_path):
    run = FakeRun(tmp_path, statuses={8: SPIKE}, failure=dict(rollback_steps=5))
    assert run.run() == [0, 1, 2, 3, *range(9, 17)]
    assert run.rollbacks == [4]
    assert saved_steps(tmp_path) == [2, 4, 6, 8, 10, 12]


def test_an_anomaly_read_late_names_its_own_step(tmp_path):
    far = MAX_PENDING + 9
    run = FakeRun(
        tmp_path, steps=2 * far, statuses={far - 1: NOT_FINITE}, failure=dict(nonfinite="stop"),
        checkpoint=dict(every=0), log_every=1000,
    )  # fmt: skip
    with pytest.raises(DivergedError, match=rf"^the loss at step {far} is .*fake:{far - 1}"):
        run.run()
    assert far <= len(run.given) <= far + MAX_PENDING
    assert saved_steps(tmp_path) == []


def test_statuses_are_read_together_at_log_lines_and_before_saves(tmp_path, monkeypatch):
    reads = []
    read_results = Loop._read_results

    def noted(loop, results, last_step):
        if results:
            reads.append([each.step for each in results])
        return read_results(loop, results, last_step)

    monkeypatch.setattr(Loop, "_read_results", noted)
    run = FakeRun(tmp_path, steps=12, checkpoint=dict(every=10), log_every=3)
    run.run()
    # One step late at log lines, at once before the save at step 10 and at the end.
    assert reads == [[1, 2, 3], [4, 5, 6], [7, 8, 9, 10], [11, 12]]
    reads.clear()
    FakeRun(tmp_path / "long", steps=10, checkpoint=dict(every=0), log_every=1000).run()
    assert reads == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]], "MAX_PENDING at a time"


def test_nothing_is_saved_before_its_status_is_known(tmp_path):
    """The spike is at step 6, which would be saved; the skipped step 4 is saved."""
    run = FakeRun(tmp_path, statuses={5: SPIKE, 3: NOT_FINITE}, log_every=1000)
    assert run.run() == [0, 1, 2, -1, *range(7, 15)]
    assert run.rollbacks == [4]


def test_a_resumed_run_takes_the_batches_that_an_uninterrupted_one_takes(tmp_path):
    statuses = {6: SPIKE}
    straight = FakeRun(tmp_path / "straight", statuses=statuses).run()
    for start, end in ((0, 5), (5, 9), (9, 12)):
        parts = FakeRun(tmp_path / "parts", end, statuses).run(start)
    assert parts == straight


def test_batches_are_on_the_device_before_their_step(tmp_path, monkeypatch):
    put, put_numbers = prefetch.put_batch, []

    def noted(batch, mesh):
        put_numbers.append(int(batch["inputs"][0, 0]))
        return put(batch, mesh)

    monkeypatch.setattr(prefetch, "put_batch", noted)
    run = FakeRun(tmp_path)
    step, put_counts = run.train_step, []
    run.train_step = lambda *args: put_counts.append(len(put_numbers)) or step(*args)
    run.run()
    assert put_numbers == list(range(12))
    assert put_counts == [*range(2, 13), 12], (
        "the batch after each step's is there, but for the last"
    )


def test_profiles_name_the_steps(tmp_path, monkeypatch):
    named = []

    def annotation(name, step_num):
        named.append((name, step_num))
        return contextlib.nullcontext()

    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", annotation)
    FakeRun(tmp_path, steps=3).run()
    assert named == [("train", 1), ("train", 2), ("train", 3)]


def test_an_implicit_transfer_in_the_loop_raises(tmp_path):
    run = FakeRun(tmp_path)
    step = run.train_step
    double = jax.jit(lambda x: 2 * x)

    def careless(state, batch, frozen_inputs, time_used):
        double(np.ones(3, np.float32))
        return step(state, batch, frozen_inputs, time_used)

    run.train_step = careless
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        run.run()
    double(np.ones(3, np.float32))  # outside of the loop nothing is disallowed
