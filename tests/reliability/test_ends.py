"""Row 33: full disks, closed outputs and foreign locks end a script in one line, with a code.

/dev/full takes the place of a full disk: every write to it fails with "No space left on device".
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import train
from checkpointing import run_directory
from experiment import command_line
from experiment.schema import ConfigError
from tests import scripts
from tests.reliability.commands import ROOT, config_of


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    train.train_and_evaluate(config_of("decoder", texts, 2), workdir)
    return workdir


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_scores_are_printed_before_they_are_recorded(run, figure):
    (run / "evaluations.jsonl").symlink_to("/dev/full")
    ended = scripts.run("evaluate.py", f"--workdir={run}")
    assert ended.code == 74 and "Traceback" not in ended.err
    problem = "evaluations.jsonl (No space left on device); copy them from here, or make room"
    assert problem in ended.err.splitlines()[-1]
    assert json.loads(ended.out)["step"] == 2
    figure(33, "evaluate.py prints scores that cannot be written, code 74")


@pytest.mark.parametrize("name", ["config.json.new", "metrics.jsonl.new"])
def test_a_full_disk_at_a_start_and_at_a_resumption(name, run, texts):
    """Every start writes the config, and a resumption writes metrics.jsonl anew."""
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("/dev/full")
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(OSError, match="No space left on device") as full:
        train.train_and_evaluate(config_of("decoder", texts, 4), run)
    assert full.value.errno in command_line.DISK_PROBLEMS
    assert (run / "metrics.jsonl").read_text() == before


def test_a_lock_of_another_user_is_refused(run, monkeypatch):
    opened = Path.open

    def refused(path, *arguments, **named):
        if path.name == "lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refused)
    reason = r"lock cannot be opened \(Permission denied\): it belongs to user \w+; choose another"
    with pytest.raises(ConfigError, match=reason), run_directory.lock(run):
        pass


SCRIPT = """
import errno, os, sys
from experiment import command_line
def main():
    if "full" in sys.argv[0]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/lock")
    if "network" in sys.argv[0]:
        raise OSError(errno.EIO, "503: busy")
    if "bug" in sys.argv[0]:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), "a")
    print("a result")
sys.argv = sys.argv[1:]
command_line.launch(main)
"""


def ended(name: str, redirection: str = "") -> subprocess.CompletedProcess:
    """A script whose main does what its name says, started by a shell."""
    command = f'"$0" -c "$1" {name} {redirection}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, SCRIPT], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("name", "redirection", "code", "line"),
    [
        ("full", "", 74, "runs/a/lock cannot be written (No space left on device); make room, and"),
        ("network", "", 74, "a file: input or output failed (503: busy); check the disk"),
        ("fine", "> /dev/full", 74, "standard output or a file cannot be written (No space left"),
        ("fine", ">&-", 2, "standard output is closed; send it to a file, or to /dev/null"),
    ],
)
def test_a_script_ends_with_one_line(name, redirection, code, line):
    found = ended(name, redirection)
    assert found.returncode == code, found.stderr
    (only,) = found.stderr.strip().splitlines()
    assert line in only


def test_other_ends_are_as_before():
    assert (ended("fine").returncode, ended("fine").stdout) == (0, "a result\n")
    assert ended("fine", "2>&-").stdout == "a result\n"
    bug = ended("bug")
    assert bug.returncode == 1 and "Traceback" in bug.stderr
    assert ended("fine", "| true").returncode == 0
