"""Rows 28 and 29: interrupted commands of generate.py and convert.py."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import train
from tests.pretrained.make_fixtures import FIXTURES
from tests.reliability.commands import PATIENCE, PYTHON, ROOT, config_of
from training.exits import AT_ONCE

LINES = [f"line {'x' * (7 * n % 40)} {n}" for n in range(24)]


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train.train_and_evaluate(config_of("decoder", texts, 1), workdir)
    return workdir


@pytest.fixture
def start(trained, tmp_path):
    """Starts generate.py on the lines, with an output file of the given name."""
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))

    def start(name, *flags, script="generate.py"):
        return subprocess.Popen(
            [
                *PYTHON, script, f"--workdir={trained}", f"--input={tmp_path}/lines.txt",
                f"--output={tmp_path / name}", "--batch_size=3", "--max_new_tokens=5",
                "--method=sample", "--num_outputs=2", *flags,
            ],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    return start


def finished(process, code=0):
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("style", [[], ["--json"]])
def test_answers_survive_an_interruption(start, tmp_path, figure, number, style):
    finished(start("whole", *style))
    expected = (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("whole.*"))
    process = start("cut", *style, script="tests/reliability/slow_answers.py")
    record = tmp_path / "cut.part.json"
    end = time.monotonic() + 300
    while not (record.exists() and json.loads(record.read_text())["lines"] >= 6):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    errors = finished(process, AT_ONCE if number == signal.SIGINT else -number)
    assert "Traceback" not in errors
    answered = json.loads(record.read_text())["lines"]
    assert 6 <= answered < len(LINES)
    if number == signal.SIGINT:
        assert f"the outputs for {answered} of {len(LINES)} lines are in {tmp_path}/cut.part" in (
            errors
        )
    part = (tmp_path / "cut.part").read_bytes()
    assert expected.startswith(part) and 0 < len(part) < len(expected)
    assert not (tmp_path / "cut").exists()
    assert "continue it with --resume" in finished(start("cut", *style), 2)
    assert "was begun with another --seed" in finished(
        start("cut", *style, "--seed=1", "--resume"), 2
    )
    finished(start("cut", *style, "--resume"))
    assert (tmp_path / "cut").read_bytes() == expected
    assert not list(tmp_path.glob("cut.*"))
    figure(28, f"{number.name} after {answered} of {len(LINES)} lines; --resume: byte-identical")


@pytest.mark.slow
def test_what_a_killed_conversion_left_is_removed(tmp_path, figure):
    target = tmp_path / "model"
    arguments = [f"--from={FIXTURES / 'bert_base'}", f"--to={target}", "--tokenizer=none"]

    def started():
        return subprocess.Popen(
            [sys.executable, "convert.py", *arguments],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    killed, end = started(), time.monotonic() + 300
    while not (left := list(tmp_path.glob(".model.new-*"))):
        assert killed.poll() is None and time.monotonic() < end, killed.communicate()
        time.sleep(0.001)
    killed.kill()
    killed.communicate()
    assert [path.exists() for path in left] == [True]
    # A directory that a running program may be writing to stays.
    running = tmp_path / f".model.new-{os.getpid()}"
    elsewhere = tmp_path / ".model.new-1-another.host"
    for path in (running, elsewhere):
        path.mkdir()
    errors = finished(started())
    assert f"{left[0]} is what a killed program left behind: removed" in errors
    assert {path.name for path in tmp_path.iterdir()} == {"model", running.name, elsewhere.name}
    figure(29, "a conversion that was killed: the next one removed what it had left")
