"""Commands of clouds and clusters that only note how they are called."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.scripts import ROOT

# A process in the background of a shell ignores Ctrl-C, and so would those that it starts.
TAKES_CTRL_C = (
    sys.executable, "-ISc",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)  # fmt: skip
NAMES = ("gcloud", "kubectl", "sbatch", "scontrol", "srun", "git")


class StandIns:
    """Stand-ins for commands, in a directory that is the first of PATH."""

    def __init__(self, home: Path):
        self.home = home
        (home / "bin").mkdir(parents=True)
        (home / "bucket/b/run.launch").mkdir(parents=True)
        for name in NAMES:
            self.add(home / "bin" / name, name)

    def add(self, path: Path, name: str) -> None:
        """Writes a stand-in for the command `name` at `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec sh {ROOT}/tests/launch/stand_in.sh {name} "$@"\n')
        path.chmod(0o755)

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a script: the stand-ins are found first, and nothing waits long."""
        inherited = ("HOME", "LANG", "TMPDIR")
        return {
            **{name: os.environ[name] for name in inherited if name in os.environ},
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "STAND_INS": str(self.home),
            "POLL_SECONDS": "0",
            "RESTART_SECONDS": "0",
            **variables,
        }

    def run(self, *command: str, cwd: Path = ROOT, **variables: str):
        """Runs a command to its end; one that hangs fails the test."""
        return subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    @contextlib.contextmanager
    def start(self, *command: str, **variables: str):
        """Starts a command in a process group of its own, which the end of the context kills."""
        process = subprocess.Popen(
            [*TAKES_CTRL_C, *map(str, command)],
            cwd=ROOT,
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def calls(self, name: str = "") -> list[list[str]]:
        """The arguments of all calls of a command so far; without a name, also the names."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.split("\x1f") for line in lines]
        return [arguments for each, *arguments in found if each == name] if name else found

    def plan_codes(self, *codes: int | str) -> None:
        """What the next runs of train.py end with."""
        self.write_lines(self.home / "codes", codes)

    def plan_states(self, *plan: list[str]) -> None:
        """The states of each TPU that will be created."""
        (self.home / "plan").mkdir()
        for number, states in enumerate(plan):
            self.write_lines(self.home / "plan" / str(number), states)

    def plan_existing(self, *states: str) -> None:
        """A TPU that is there already, and the states that it goes through."""
        self.write_lines(self.home / "states", states)

    @staticmethod
    def write_lines(path: Path, lines: Iterable[int | str]) -> None:
        path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def stand_ins(tmp_path):
    return StandIns(tmp_path / "stand_ins")
