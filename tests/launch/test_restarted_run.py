"""launch/restart.sh with train.py itself."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.runs import saved
from tests.scripts import ROOT

pytestmark = pytest.mark.slow
STEPS, EVERY = 240, 30
TRAIN = (
    sys.executable, "train.py", "--config=configs/digits.py", "--config.model.encoder_layers=1",
    "--config.model.width=16", "--config.model.heads=2", "--config.optimizer.warmup_steps=1",
    "--config.eval.every=0", "--config.log_every=1", f"--config.checkpoint.every={EVERY}",
    "--config.checkpoint.fsync=False",
)  # fmt: skip
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "RESTART_SECONDS": "0"}


def start(*command):
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def kill_at(process: subprocess.Popen, steps: list[int], number: signal.Signals) -> list[str]:
    """Sends a signal to train.py as soon as its log reaches each of the steps; returns the log."""
    log, remaining = [], list(steps)
    for line in process.stderr:
        log.append(line)
        found = re.match(r"step +(\d+)/", line)
        if found and remaining and int(found[1]) >= remaining[0]:
            remaining.pop(0)
            os.kill(child_of(process.pid), number)
    assert not remaining
    return log


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_a_run_that_is_killed_twice_ends_like_an_uninterrupted_one(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    arguments = (*TRAIN, f"--config.steps={STEPS}")
    with start(*arguments, f"--workdir={straight}") as process:
        process.communicate()
    with start("launch/restart.sh", *arguments, f"--workdir={killed}") as process:
        log = "".join(kill_at(process, [EVERY + 5, 5 * EVERY + 5], signal.SIGKILL))
    assert process.returncode == 0, log
    assert log.count("restart.sh: ended with code 137; starting again") == 2
    first, second = map(int, re.findall(r"resuming .* at step (\d+)", log))
    assert EVERY <= first < 5 * EVERY <= second < STEPS
    expected, found = saved(straight, STEPS), saved(killed, STEPS)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_bad_config_is_refused_once(tmp_path):
    with start("launch/restart.sh", *TRAIN, "--config.steps=-1") as process:
        log = process.stderr.read()
    assert process.returncode == 2
    assert log.count("steps") == 1 and "ended with code 2" in log


def test_sigterm_to_the_script_saves_the_run(tmp_path):
    command = "launch/restart.sh", *TRAIN, "--config.steps=1000000", f"--workdir={tmp_path}/run"
    with start(*command) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        for line in process.stderr:
            if line.startswith("step"):
                process.terminate()
                break
        log = process.stderr.read()
        watchdog.cancel()
    assert process.returncode == 75, log
    assert "stopped at step" in log and "starting again" not in log
