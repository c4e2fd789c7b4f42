"""Rows 15, 16, 21, 22, 30: NaN and infinite losses, loss spikes, hangs, a failed evaluation."""

import json
import re

import jax
import numpy as np
import pytest

import generate
import train
from checkpointing import digests
from checkpointing.checkpoint_manager import saved_steps
from evaluation import eval_sets
from experiment.schema import ConfigError
from inference.sampler import Sampler
from tests.reliability.commands import Command, config_of, contents, loaded, metrics
from training import prefetch
from training import step as training_step
from training.exits import STALLED, DivergedError, EvaluationFailedError, OutOfMemoryError
from training.loop import Loop

BAD = 7  # the batch, counted from 1, that is made to go wrong


@pytest.fixture
def spoilt(monkeypatch):
    """Multiplies the loss of some batches, and notes which were given to the steps."""
    put, counts_of = prefetch.put_batch, training_step.term_counts
    loss_of = training_step.total_loss
    given, factors = [], {}

    def put_with_factor(batch, mesh):
        given.append(batch["inputs"])
        # By what is in the batch, not by when it comes: the same after an interruption.
        factor = factors.get(batch["inputs"].tobytes(), 1.0)
        return put({**batch, "factor": np.full(len(batch["inputs"]), factor, np.float32)}, mesh)

    def counts_and_factor(task, batch):
        return counts_of(task, batch) | {"factor": batch["factor"].mean()}

    def loss_times_factor(totals, counts):
        counts = dict(counts)
        return counts.pop("factor") * loss_of(totals, counts)

    monkeypatch.setattr(prefetch, "put_batch", put_with_factor)
    monkeypatch.setattr(training_step, "term_counts", counts_and_factor)
    monkeypatch.setattr(training_step, "total_loss", loss_times_factor)
    return given, factors


@pytest.fixture
def job(texts, tmp_path, spoilt, compiled_once):
    """Runs 12 steps in which the 7th batch, and more if asked, has a loss of the factor's size."""

    def run(workdir, factor, *, steps=12, bad=(BAD,), profile_steps=(0, 0), **failure):
        config = config_of(
            "decoder", texts, steps,
            data=dict(packing=False, mixture=(), path=str(texts / "one")),
            optimizer=dict(accumulate=1), checkpoint=dict(every=2, keep=99),
            failure=dict(spike_window=4, **failure),
        )  # fmt: skip
        given, factors = spoilt
        given.clear()
        factors.clear()
        data = loaded(config)
        factors |= {data.train_batch(n - 1)["inputs"].tobytes(): factor for n in bad}
        train.train_and_evaluate(config | dict(profile_steps=profile_steps), tmp_path / workdir)
        return list(given)

    return run


@pytest.mark.parametrize("factor", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_a_nonfinite_loss_stops_the_run(job, factor, tmp_path, figure):
    with pytest.raises(DivergedError) as stopped:
        job("run", factor)
    message = str(stopped.value)
    assert message.startswith(f"the loss at step {BAD} is ")
    assert "from the examples text_files:" in message
    (record,) = map(json.loads, (tmp_path / "run" / "failures.jsonl").read_text().splitlines())
    assert record["step"] == BAD
    assert len(record["examples"]) >= 16
    assert saved_steps(tmp_path / "run") == [2, 4, 6]
    for step in (2, 4, 6):
        assert all(
            np.isfinite(np.frombuffer(data, np.float32)).all()
            for name, data in contents(tmp_path / "run", step).items()
            if "losses" not in name
        )
    code = DivergedError.exit_code
    figure(15, f"a loss of {factor}: stopped (code {code}) naming step {BAD} and examples")


def test_a_loss_that_is_no_number_is_skipped(job, tmp_path, figure):
    job("run", np.nan, nonfinite="skip")
    before, after = (contents(tmp_path / "run", step) for step in (6, 8))
    job("short", np.nan, steps=BAD, nonfinite="skip")
    skipped = contents(tmp_path / "short", BAD)
    changed = {name for name in before if before[name] != skipped[name]}
    assert changed == {"['rest']['step']", "['rest']['guard']['in_a_row']"} | {
        "['rest']['guard']['skipped']"
    }
    assert any(after[name] != before[name] for name in before if "params" in name)
    assert metrics(tmp_path / "run", "failure/skipped")[12] == 1
    assert BAD not in metrics(tmp_path / "run")
    figure(15, f"skip: {len(before) - 3} arrays bit-unchanged by step {BAD}, all 12 steps made")


@pytest.mark.slow
def test_too_many_skipped_steps_in_a_row_end_the_run(job, tmp_path, figure):
    with pytest.raises(DivergedError, match="after 3 steps in a row"):
        job("run", np.nan, bad=(6, 7, 8, 9), nonfinite="skip", limit=3)
    assert saved_steps(tmp_path / "run")[-1] == 6
    figure(15, "skip, four in a row with limit=3: ended at the third, nothing applied")


@pytest.mark.slow
def test_a_skipped_spike_does_not_enter_the_loss_window(job, tmp_path, figure):
    job("run", 1e4, spike="skip")
    job("nan", np.nan, nonfinite="skip")
    ours, theirs = contents(tmp_path / "run", 12), contents(tmp_path / "nan", 12)
    assert ours == theirs, "whichever reason a step is skipped for, the others are the same"
    figure(16, "skip: exactly the spike's step dropped, the window as if it had not been")


def test_rollbacks_from_a_spike_are_reproducible(job, tmp_path, figure):
    options = dict(spike="rollback", rollback_steps=2, rollback_batches=3)
    given = job("run", 1e4, **options)
    # Step 7 spiked (8 may be under way by then); back to 4, and from there on three batches later.
    assert saved_steps(tmp_path / "run") == [2, 4, 6, 8, 10, 12]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["failure"]["rollback_batches"] == 3
    again = job("again", 1e4, **options)
    np.testing.assert_array_equal(again, given)
    assert contents(tmp_path / "again", 12) == contents(tmp_path / "run", 12)
    # Interrupted before the spike and after it, the way is the same.
    for stop in (5, 9):
        job("parts", 1e4, steps=stop, **options)
    job("parts", 1e4, **options)
    assert contents(tmp_path / "parts", 12) == contents(tmp_path / "run", 12)
    assert metrics(tmp_path / "run", "failure/rollbacks")[12] == 1
    steps = sorted(metrics(tmp_path / "run"))
    assert steps == list(range(1, 13))
    figure(16, "rollback: to step 4, batches 5 to 7 left out; twice and in parts byte-identical")


@pytest.mark.slow
def test_a_rollback_may_come_while_the_run_is_profiled(job, tmp_path):
    options = dict(spike="rollback", rollback_steps=2, rollback_batches=3)
    job("run", 1e4, profile_steps=(6, 9), **options)
    assert saved_steps(tmp_path / "run")[-1] == 12
    # Where TensorBoard looks, beside its events.
    assert list((tmp_path / "run" / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.slow
def test_the_run_ends_if_no_checkpoint_can_be_rolled_back_to(job, monkeypatch, figure):
    monkeypatch.setattr(digests, "fault", lambda directory: f"{directory}/x is damaged")
    with pytest.raises(
        DivergedError, match=r"^step 7 is a loss spike, with nothing to roll back to: .* is damaged"
    ):
        job("run", 1e4, spike="rollback", rollback_steps=2, rollback_batches=3)
    figure(16, f"rollback with every checkpoint damaged: ended (code {DivergedError.exit_code})")


@pytest.mark.slow
def test_a_rollback_continues_after_the_skipped_batches(job, texts, tmp_path):
    given = job("run", 1e4, spike="rollback", rollback_steps=2, rollback_batches=5)
    config = config_of(
        "decoder", texts, 12, data=dict(packing=False, mixture=(), path=str(texts / "one"))
    )
    data = loaded(config)
    expected = [data.train_batch(n)["inputs"] for n in (*range(4), *range(9, 17))]
    np.testing.assert_array_equal(given[:4] + given[-8:], expected)


@pytest.mark.slow
def test_a_spike_that_comes_back_ends_the_run(job, figure):
    every = tuple(range(5, 60))
    with pytest.raises(DivergedError, match="after 2 rollbacks"):
        job("run", 1e4, bad=every, spike="rollback", rollback_steps=1, rollback_batches=2, limit=2)
    figure(16, "rollback, every batch a spike with limit=2: ended after two")


@pytest.mark.slow
def test_the_watchdog_ends_a_step_that_never_ends(texts, tmp_path, figure):
    watches = dict(watchdog_seconds=20.0, watchdog_ends=True)
    config = config_of("decoder", texts, 20, failure=watches)
    with Command(config, tmp_path / "run", script="tests/reliability/stuck.py") as command:
        assert command.wait() == STALLED, command.text
    assert "no progress for 20 s" in command.text
    assert "in stuck_at_five" in (tmp_path / "run" / "stacks.txt").read_text()
    figure(21, f"a step that never ends: stacks of all threads logged, exit code {STALLED}")


def test_a_failed_evaluation_does_not_end_training(job, texts, tmp_path, monkeypatch, figure):
    config = config_of("decoder", texts, 6, eval=dict(every=2), checkpoint=dict(every=2, keep=9))
    train.train_and_evaluate(config, tmp_path / "straight")
    calls = []

    def fails(*args, **named):
        calls.append(args)
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(eval_sets, "write_samples", fails)
        with pytest.raises(EvaluationFailedError, match="the last step, 6, is saved, but its"):
            train.train_and_evaluate(config, tmp_path / "run")
    assert len(calls) == 3
    assert metrics(tmp_path / "run", "eval/failures") == {2: 1, 4: 2, 6: 3}
    assert contents(tmp_path / "run", 6) == contents(tmp_path / "straight", 6)
    scores = train.train_and_evaluate(config, tmp_path / "run")
    assert scores
    figure(22, "3 of 3 evaluations failed: counted and logged, the final state byte-identical")


EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory allocating 3221225472 bytes.\nBufferAssignment: ..."


def test_a_step_that_runs_out_of_memory_is_a_line(job, tmp_path, monkeypatch, figure):
    def exhausted(loop, state, batch):
        raise jax.errors.JaxRuntimeError(EXHAUSTED)

    monkeypatch.setattr(Loop, "_step", exhausted)
    with pytest.raises(OutOfMemoryError) as ended:
        job("run", 1.0)
    (line,) = str(ended.value).splitlines()
    for named in ("3.00 GiB", "data.batch_size=16", "model.remat=full", "plan.py"):
        assert named in line
    figure(30, f"a step that runs out of memory: one line, code {OutOfMemoryError.exit_code}")


def test_an_evaluation_that_runs_out_of_memory_is_skipped(
    texts, tmp_path, monkeypatch, capsys, figure
):
    evaluate, calls = eval_sets.evaluate, []

    def exhausted_once(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise jax.errors.JaxRuntimeError(EXHAUSTED)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(eval_sets, "evaluate", exhausted_once)
    config = config_of("decoder", texts, 4, eval=dict(every=2, batch_size=32))
    assert train.train_and_evaluate(config, tmp_path / "run")
    errors = capsys.readouterr().err
    assert "at step 2 failed (out of memory: lower eval.batch_size=32; plan.py" in errors
    assert "Traceback" not in errors
    figure(30, "an evaluation that runs out of memory: one line, and training continued")


def test_a_generation_that_runs_out_of_memory_is_a_line(texts, tmp_path, monkeypatch, figure):
    train.train_and_evaluate(config_of("decoder", texts, 1), tmp_path / "run")

    def exhausted(sampler, batch, numbers):
        raise jax.errors.JaxRuntimeError(EXHAUSTED)

    monkeypatch.setattr(Sampler, "predict", exhausted)
    with pytest.raises(OutOfMemoryError, match=r"generation ran out .*3\.00 GiB.* --batch_size"):
        generate.generate(tmp_path / "run", ["a"])


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_a_line_of_a_megabyte_is_refused_and_a_huge_batch_is_not(texts, tmp_path, figure, family):
    more = {}
    if family == "encoder":
        lines = "\n".join(f"{n % 2}\tnumber {n}" for n in range(40))
        for split in ("train", "validation"):
            (tmp_path / f"{split}.tsv").write_text(lines + "\n")
        more = dict(
            task=dict(objective="classify_text"), model=dict(attention="dot", max_length=64),
            data=dict(source="labelled_text_files", path=str(tmp_path), mixture=(), packing=False),
        )  # fmt: skip
    train.train_and_evaluate(config_of(family, texts, 1, **more), tmp_path / "run")
    found = generate.generate(tmp_path / "run", ["ab", "cd", "ef"], batch_size=100_000_000)
    assert len(found) == 3
    with pytest.raises(ConfigError) as refused:
        generate.generate(tmp_path / "run", ["ab", "abcdefgh " * 120_000])
    (line,) = str(refused.value).splitlines()
    assert line.startswith("line 2 has ")
    most = int(re.search(r"at most ([\d,]+) tokens can fit", line)[1].replace(",", ""))
    assert 1000 < most < 1_000_000
    figure(30, f"{family}: a line of 1 MB refused, {most:,} tokens can fit; batch_size=10^8 runs")
