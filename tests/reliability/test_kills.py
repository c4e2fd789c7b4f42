"""Rows 3 to 6: kills and stop signals, to one process or to one of two."""

import random
import signal
import time

import pytest

from checkpointing.checkpoint_manager import saved_steps
from tests.reliability.commands import (
    SHORT,
    Command,
    config_of,
    contents,
    finish,
    last_step,
    started,
)
from training.exits import AT_ONCE, DIED, StoppedError

pytestmark = pytest.mark.slow
EVERY = 20


def endless(texts, **sections):
    """A run that does not end by itself during a test."""
    return config_of("decoder", texts, 1_000_000, checkpoint=dict(every=10_000), **sections)


@pytest.mark.parametrize("overlap", [{}, {"overlap": 5}])
def test_killed_at_random_moments(overlap, texts, tmp_path, figure):
    """By default at most one interval is lost; otherwise also the steps made during a save."""
    may_be_lost = EVERY + overlap.get("overlap", 0)
    steps, kills, inside_a_save = (300, 4, 1) if SHORT else (2_000, 20, 5)
    config = config_of("decoder", texts, steps, checkpoint=dict(every=EVERY, keep=2, **overlap))
    finish(config, tmp_path / "straight")
    expected = contents(tmp_path / "straight", steps)

    workdir, rng, lost, reached = tmp_path / "run", random.Random(0), [], 0

    def unfinished():
        return list((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp"))

    for number in range(kills):
        begin = (saved_steps(workdir) or [0])[-1]
        lost.append(reached - begin)
        assert lost[-1] <= may_be_lost
        with Command(config, workdir) as command:
            command.until_step(begin + rng.randint(1, 3 * EVERY))
            if number < inside_a_save:
                command.until(unfinished, "a save")
            command.signal(signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
        assert unfinished() or number >= inside_a_save
        reached = last_step(workdir)
    assert reached < steps
    finish(config, workdir)
    assert contents(workdir, steps) == expected
    assert not unfinished()
    figure(
        3,
        f"{overlap or 'by default'}: {kills} of {kills} resumed, {inside_a_save} killed inside a "
        f"save; at most {max(lost)} steps lost, saving every {EVERY}; final state byte-identical",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signals_save_and_exit(number, texts, tmp_path, figure):
    config = endless(texts)
    with Command(config, tmp_path / "run") as command:
        command.until_step(5)
        begin = time.monotonic()
        command.signal(number)
        code = command.wait(10)
        seconds = time.monotonic() - begin
    assert code == StoppedError.exit_code, command.text
    (step,) = saved_steps(tmp_path / "run")
    assert f"stopped at step {step} of" in command.text
    # At the current step: not an earlier one that happened to be saved.
    assert step >= last_step(tmp_path / "run") >= 5
    finish({**config, "steps": step + 10}, tmp_path / "run")
    finish({**config, "steps": step + 10}, tmp_path / "straight")
    assert contents(tmp_path / "run", step + 10) == contents(tmp_path / "straight", step + 10)
    figure(4, f"{number.name}: saved at step {step}, exit code {code} after {seconds:.1f} s")


def test_the_second_interrupt_ends_the_run_at_once(texts, tmp_path, figure):
    """The first one waits for the current step, which here never ends."""
    with Command(endless(texts), tmp_path / "run", script="tests/reliability/stuck.py") as command:
        command.until(lambda: "stuck at step 5" in command.text, "step 5")
        command.signal(signal.SIGINT)
        command.until(lambda: "saving after this step" in command.text, "an answer")
        begin = time.monotonic()
        command.signal(signal.SIGINT)
        assert command.wait(10) == AT_ONCE
        seconds = time.monotonic() - begin
    figure(4, f"second SIGINT in a step that never ends: exit code {AT_ONCE} after {seconds:.1f} s")


def test_sigterm_to_one_of_two_processes(texts, tmp_path, figure):
    config = endless(texts)
    with started(config, tmp_path / "run", 2) as commands:
        commands[0].until_step(5)
        commands[1].signal(signal.SIGTERM)
        codes = [command.wait(60) for command in commands]
    assert codes == [StoppedError.exit_code] * 2, "\n".join(c.text for c in commands)
    (step,) = saved_steps(tmp_path / "run")
    assert all(f"stopped at step {step} of" in command.text for command in commands)
    finish({**config, "steps": step + 5}, tmp_path / "run", 2)
    finish({**config, "steps": step + 5}, tmp_path / "straight", 2)
    assert contents(tmp_path / "run", step + 5) == contents(tmp_path / "straight", step + 5)
    figure(5, f"SIGTERM to one: both stopped at step {step}, committed; going on byte-identical")


@pytest.mark.parametrize("killed", [0, 1])
def test_one_of_two_processes_is_killed(killed, texts, tmp_path, figure):
    steps = 80 if SHORT else 300
    config = config_of(
        "decoder", texts, steps, checkpoint=dict(every=EVERY), failure=dict(heartbeat_seconds=10)
    )
    with started(config, tmp_path / "run", 2) as commands:
        commands[0].until_step(EVERY + 5)
        begin = time.monotonic()
        commands[killed].signal(signal.SIGKILL)
        code = commands[1 - killed].wait(60)
        seconds = time.monotonic() - begin
    assert code == -signal.SIGABRT, commands[1 - killed].text
    assert DIED == 128 + signal.SIGABRT  # as a shell reports it
    finish(config, tmp_path / "run", 2)
    finish(config, tmp_path / "straight", 2)
    assert contents(tmp_path / "run", steps) == contents(tmp_path / "straight", steps)
    figure(6, f"{killed} killed: the other ended after {seconds:.1f} s with {DIED}; byte-identical")
