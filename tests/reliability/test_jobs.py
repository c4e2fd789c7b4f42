"""Rows 25 to 27: what ends one process of a job ends the others, within seconds."""

import re
import shutil
import signal
import time

import pytest

from tests.reliability.commands import Command, config_of, variables_of
from training import processes
from training.exits import AT_ONCE, DIED

SECONDS = 30  # far below the heartbeats' 100 s, even on a busy machine


def job(config, tmp_path, **options):
    """Two processes with one config."""
    workdir = tmp_path / "run"
    return [Command(config, workdir, **options, **each) for each in variables_of(2)]


def lines(command):
    """What a process printed, without what Gloo, the CPUs' network, says about itself."""
    return [line for line in command.text.splitlines() if not line.startswith("[Gloo]")]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [0, 1])
def test_data_that_one_process_lacks_is_refused_by_all(texts, tmp_path, figure, lacking):
    # As on two hosts: each process has the texts, and the workdir, under a name of its own.
    commands = []
    (tmp_path / "run").mkdir()
    for index, variables in enumerate(variables_of(2)):
        host = tmp_path / f"host{index}"
        host.mkdir()
        (host / "run").symlink_to(tmp_path / "run")
        if index != lacking:
            shutil.copytree(texts, host / "texts")
        config = config_of("decoder", host / "texts", 1_000_000)
        commands.append(Command(config, host / "run", **variables))
    with commands[0], commands[1]:
        codes = [commands[lacking].wait()]
        begin = time.monotonic()
        codes.append(commands[1 - lacking].wait(SECONDS))
        seconds = time.monotonic() - begin
    assert codes == [2, 2], [command.text for command in commands]
    (refusal,) = lines(commands[lacking])
    assert f"{tmp_path}/host{lacking}/texts/one" in refusal
    (told,) = lines(commands[1 - lacking])
    assert re.fullmatch(rf"process {lacking} on \S+: {re.escape(refusal)}", told)
    figure(25, f"process {lacking} lacks the data: both ended with 2, {seconds:.1f} s apart")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_job_that_waits_for_another(texts, tmp_path, figure, number):
    config = config_of("decoder", texts, 1_000_000)
    commands = job(config, tmp_path, script="tests/reliability/waiting.py")
    with commands[0], commands[1]:
        commands[0].until(lambda: "has loaded" in commands[0].text, "the end of loading", 60)
        time.sleep(3)  # until it waits; a signal before that has the same effect
        begin = time.monotonic()
        commands[0].signal(number)
        codes = [command.wait(SECONDS) for command in commands]
        seconds = time.monotonic() - begin
    expected = AT_ONCE if number == signal.SIGINT else 128 + number
    assert codes == [expected] * 2, [command.text for command in commands]
    assert "before the end of the first step" in commands[0].text
    assert "Traceback" not in commands[0].text + commands[1].text
    assert re.search(r"process 0 on \S+: ", commands[1].text)
    figure(26, f"{number.name} while one waits for the other: both {expected}, {seconds:.1f} s")


@pytest.mark.slow
def test_an_unexpected_error_of_one_process_ends_the_other(texts, tmp_path, figure):
    config = config_of("decoder", texts, 1_000_000)
    commands = job(config, tmp_path, script="tests/reliability/failing.py")
    with commands[0], commands[1]:
        codes = [command.wait() for command in commands]
    assert codes == [-signal.SIGABRT, 1], [command.text for command in commands]
    assert DIED == 128 + signal.SIGABRT
    assert "Traceback" in commands[1].text
    assert re.search(r"process 1 on \S+: KeyError: 'a fault'", commands[0].text)
    assert "Traceback" not in commands[0].text
    figure(26, f"a fault in process 1: code 1 there, {DIED} in the other, which names it")


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_do_not_come_are_waited_for_so_long(texts, tmp_path, figure, index):
    config = config_of("decoder", texts, 5, failure=dict(join_seconds=3))
    with Command(config, tmp_path / "run", **variables_of(2)[index]) as command:
        begin = time.monotonic()
        assert command.wait(60) == 2, command.text
        seconds = time.monotonic() - begin
    (line,) = lines(command)
    assert "within 3 s (failure.join_seconds)" in line
    assert (processes.COUNT if index == 0 else processes.ADDRESS) in line
    figure(27, f"process {index} alone: refused in a line, {seconds:.0f} s (join_seconds=3)")


@pytest.mark.slow
def test_ctrl_c_ends_a_process_that_waits_for_the_job_to_come(texts, tmp_path, figure):
    with Command(config_of("decoder", texts, 5), tmp_path / "run", **variables_of(2)[1]) as command:
        time.sleep(15)  # nothing says when it begins to wait; before, Ctrl-C ends it too
        command.signal(signal.SIGINT)
        code = command.wait(SECONDS)
    assert code in (-signal.SIGINT, AT_ONCE)
    figure(27, "Ctrl-C while connecting: ended at once")
