"""Runs that are complete before their last step: by a time limit, or because nothing improves."""

import dataclasses
import itertools
import json
import os
import signal

import jax
import numpy as np
import pytest

import train
from checkpointing.checkpoint_manager import saved_steps
from configs import digits, pydoc
from evaluation import evaluator
from experiment.sections import from_mapping
from tests.runs import saved, tiny
from training import time_limit
from training.exits import StoppedError

pytestmark = pytest.mark.usefixtures("compile_once")

LONG = 1000  # steps that no run here comes to


def config(**changes):
    sections = dict(
        eval=dict(every=0, batches=1, samples=0),
        checkpoint=dict(every=0, keep=9),
        optimizer=dict(schedule="linear", warmup_steps=2, final_fraction=0.1),
    )
    for name, values in changes.items():
        sections[name] = (
            {**sections.get(name, {}), **values} if isinstance(values, dict) else values
        )
    return tiny(digits, LONG, **sections)


def metrics(workdir, name):
    reports = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {report["step"]: report[name] for report in reports if name in report}


@pytest.fixture
def a_second_a_step(monkeypatch):
    """A clock by which each step takes a second, however long it really takes."""
    seconds = itertools.count(1000.0)
    monkeypatch.setattr(time_limit, "clock", lambda: next(seconds))


def minutes(seconds):
    return seconds / 60


def test_a_run_ends_complete_at_its_time_limit(tmp_path, a_second_a_step, capsys):
    limited = config(time_limit=minutes(20))
    scores = train.train_and_evaluate(limited, tmp_path)
    last = saved_steps(tmp_path)[-1]
    assert 20 <= last <= 23  # the time is read a step late
    assert f"ended at step {last} of {LONG}: the time_limit of {minutes(20):g} minutes" in (
        capsys.readouterr().err
    )
    assert set(metrics(tmp_path, "eval/held_out/accuracy")) == {last}
    assert scores["eval/held_out/accuracy"] == metrics(tmp_path, "eval/held_out/accuracy")[last]

    # The learning rate went down with the time, not with the steps, of which few were made.
    rates = metrics(tmp_path, "optim/learning_rate")
    peak = limited["optimizer"]["learning_rate"]
    assert rates[1] == pytest.approx(peak / 3) and rates[2] == pytest.approx(2 * peak / 3)
    assert rates[11] == pytest.approx(peak * (1 - 0.9 * 0.5), rel=0.02)
    assert rates[last] == pytest.approx(0.1 * peak)
    assert all(a >= b for a, b in itertools.pairwise(list(rates.values())[2:]))

    # Run again, it makes no step and reports the same scores.
    before = saved(tmp_path, last)
    assert train.train_and_evaluate(limited, tmp_path) == scores
    assert saved_steps(tmp_path)[-1] == last
    assert all(np.array_equal(before[name], value) for name, value in saved(tmp_path, last).items())

    # More time is more steps, as more steps would be.
    train.train_and_evaluate(config(time_limit=minutes(30)), tmp_path)
    assert last + 5 <= saved_steps(tmp_path)[-1] <= last + 13


def test_a_resumed_run_has_what_is_left_of_its_time(tmp_path, a_second_a_step, monkeypatch):
    monkeypatch.setattr(train.Loop, "_step", stopping_at(9))
    with pytest.raises(StoppedError):
        train.train_and_evaluate(config(time_limit=minutes(20)), tmp_path)
    monkeypatch.undo()
    seconds = itertools.count(5000.0)  # another boot: the clock begins elsewhere
    monkeypatch.setattr(time_limit, "clock", lambda: next(seconds))
    train.train_and_evaluate(config(time_limit=minutes(20)), tmp_path)
    assert 19 <= saved_steps(tmp_path)[-1] <= 23


def test_a_run_that_is_killed_in_its_last_evaluation_makes_the_lost_steps_again(
    tmp_path, a_second_a_step, monkeypatch
):
    class Killed(BaseException):
        pass

    def evaluate(*_):
        raise Killed

    limited = config(time_limit=minutes(20), checkpoint=dict(every=9))
    monkeypatch.setattr(evaluator.Evaluator, "evaluate", evaluate)
    with pytest.raises(Killed):
        train.train_and_evaluate(limited, tmp_path)
    assert saved_steps(tmp_path) == [9, 18]
    monkeypatch.undo()
    seconds = itertools.count(5000.0)
    monkeypatch.setattr(time_limit, "clock", lambda: next(seconds))
    train.train_and_evaluate(limited, tmp_path)
    last, rates = saved_steps(tmp_path)[-1], metrics(tmp_path, "optim/learning_rate")
    assert 19 <= last <= 23
    assert rates[last] == pytest.approx(0.1 * limited["optimizer"]["learning_rate"])


def stopping_at(last):
    """`Loop._step` with somebody who asks the run to stop at that step."""
    original = train.Loop._step

    def step(loop, state, batch):
        if int(state.step) + 1 == last:
            os.kill(os.getpid(), signal.SIGINT)
        return original(loop, state, batch)

    return step


def test_a_run_that_never_saved_has_all_of_its_time_again(tmp_path, a_second_a_step):
    (tmp_path / time_limit.FILE_NAME).write_text('{"minutes": 99}')
    train.train_and_evaluate(config(time_limit=minutes(3)), tmp_path)
    assert saved_steps(tmp_path)[-1] >= 3


def test_an_evaluation_that_would_end_too_late_is_left_to_the_end(tmp_path, monkeypatch):
    now = [0.0]

    def clock():
        now[0] += 1
        return now[0]

    monkeypatch.setattr(time_limit, "clock", clock)
    evaluate = evaluator.Evaluator.evaluate

    def slowly(*args):
        now[0] += 20
        return evaluate(*args)

    monkeypatch.setattr(evaluator.Evaluator, "evaluate", slowly)
    train.train_and_evaluate(config(time_limit=minutes(50), eval=dict(every=10)), tmp_path)
    # At step 10 after 10 seconds, 30 with the evaluation; at step 20 after 40, with 10 left.
    first, last = metrics(tmp_path, "eval/held_out/loss")
    assert first == 10 and 29 <= last <= 33
    # Nor does the last one count, if the limit is raised later.
    assert json.loads((tmp_path / time_limit.FILE_NAME).read_text())["minutes"] < minutes(55)


@pytest.fixture
def scored(monkeypatch):
    """Evaluations with these accuracies, one after another."""

    def use(*accuracies):
        given = iter(accuracies)

        def evaluate(self, params, eval_set):
            del self, params, eval_set
            return {"loss": 1.0, "accuracy": next(given)}

        monkeypatch.setattr(evaluator.Evaluator, "evaluate", evaluate)

    return use


PATIENT = dict(eval=dict(every=2, patience=3), checkpoint=dict(every=0, keep=1))


def test_a_run_that_does_not_get_better_ends_and_keeps_its_best(tmp_path, scored, capsys):
    # Equal is no better, and the third in a row is the end.
    scored(0.3, 0.5, 0.4, 0.5, 0.2, 0.9)
    scores = train.train_and_evaluate(config(**PATIENT), tmp_path)
    assert saved_steps(tmp_path) == [4, 10]
    assert scores == {
        "eval/held_out/loss": 1.0,
        "eval/held_out/accuracy": 0.2,
        "best_step": 4,
        "best_score": 0.5,
    }
    said = capsys.readouterr().err
    assert f"ended at step 10 of {LONG}: eval/held_out/accuracy has not improved in the" in said
    assert "best: step 4, eval/held_out/accuracy 0.5; " in said

    # Run again, it is complete and only evaluated. With more patience it continues.
    scored(0.2)
    assert train.train_and_evaluate(config(**PATIENT), tmp_path) == scores
    scored(0.6, 0.1, 0.1, 0.1, 0.1)
    more = config(eval=dict(every=2, patience=4), checkpoint=PATIENT["checkpoint"])
    assert train.train_and_evaluate(more, tmp_path)["best_step"] == 12
    assert saved_steps(tmp_path) == [12, 20]


def test_an_interruption_does_not_change_the_patience_count(tmp_path, scored, monkeypatch):
    scored(0.5, 0.4, 0.4, 0.4, 0.9)
    monkeypatch.setattr(train.Loop, "_step", stopping_at(5))
    with pytest.raises(StoppedError):
        train.train_and_evaluate(config(**PATIENT), tmp_path)
    monkeypatch.undo()
    scored(0.4, 0.4, 0.9)
    assert train.train_and_evaluate(config(**PATIENT), tmp_path)["best_step"] == 2
    assert saved_steps(tmp_path) == [2, 8]


def test_patience_watches_the_loss_of_language_models():
    patient = tiny(pydoc, eval=dict(patience=1))
    experiment = train.with_best_metric(from_mapping(patient), {"held_out": None})
    assert experiment.checkpoint.best_metric == "eval/held_out/loss"
    assert experiment.checkpoint.best_mode == "min"
    chosen = dataclasses.replace(experiment.checkpoint, best_metric="", best_mode="max")
    without = dataclasses.replace(from_mapping(tiny(pydoc)), checkpoint=chosen)
    assert train.with_best_metric(without, {}).checkpoint == chosen


def test_every_device_has_an_entry_of_the_time_and_the_first_process_tells_it(
    tmp_path, a_second_a_step, monkeypatch
):
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    limit = time_limit.TimeLimit(tmp_path, minutes(4), start=0)
    assert limit.of_step(mesh).tolist() == [0.0] * jax.device_count()
    assert limit.of_step(mesh).tolist() == [0.25] * jax.device_count()
    monkeypatch.setattr(time_limit, "is_primary", lambda: False)
    assert limit.of_step(mesh).tolist() == [0.0] * jax.device_count()
