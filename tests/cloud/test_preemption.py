"""Preemption from end to end: a job is killed again and again, and continues from its bucket."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from checkpointing.checkpoint_manager import saved_steps
from storage.object_store import filesystem, remote_path, upload_directory
from tests.cloud.conftest import ROOT
from tests.cloud.runs import without_times
from tests.reliability.commands import config_of, contents, variables_of

BATCH = 8
PROCESSES = 2
SECONDS = 600  # until a step is made, on a machine with other work


class Job:
    """Two processes that find nothing on their disk but the code and their config."""

    def __init__(self, config: dict, workdir: str, machine, rows):
        machine.mkdir()
        (machine / "config.py").write_text(
            "import ml_collections\n\n\ndef get_config(arg=None):\n"
            f"    return ml_collections.ConfigDict({config!r}).lock()\n"
        )
        self.rows, self._stack, self._processes = rows, contextlib.ExitStack(), []
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
        for variables in variables_of(PROCESSES):
            output = machine / f"output-{len(self._processes)}.txt"
            process = subprocess.Popen(
                [sys.executable, "tests/reliability/recorded.py",
                 f"--config={machine}/config.py", f"--workdir={workdir}"],
                cwd=ROOT,
                env={
                    **os.environ, **variables, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags,
                    "HOME": str(machine), "TMPDIR": str(machine), "PYTHONPATH": str(ROOT),
                    "ROWS_DIRECTORY": str(rows),
                    # Compiled programs, too, are in the bucket.
                    "JAX_ENABLE_COMPILATION_CACHE": "true",
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                },
                stdout=self._stack.enter_context(output.open("w")),
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._processes.append((process, output))

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception) -> None:
        for process, _ in self._processes:
            process.kill()
            process.wait()
        self._stack.close()

    def until_step(self, step: int) -> None:
        """Waits until a process of the job begins a step."""
        end = time.monotonic() + SECONDS
        while last_step(self.rows) < step:
            assert all(process.poll() is None for process, _ in self._processes), self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.01)

    def kill(self, rng: random.Random) -> None:
        """Kills both processes, in any order, at almost the same time."""
        for process, _ in rng.sample(self._processes, PROCESSES):
            process.send_signal(signal.SIGKILL)
            time.sleep(rng.choice((0, 0.2)))
        for process, _ in self._processes:
            process.wait()

    def finish(self) -> None:
        """Waits for the end of the job."""
        codes = [process.wait(SECONDS) for process, _ in self._processes]
        assert codes == [0] * PROCESSES, self.text

    @property
    def text(self) -> str:
        return "\n".join(output.read_text() for _, output in self._processes)


def given_rows(directory, index: int) -> list[dict]:
    """What a process was given, with the steps that it repeated."""
    path = directory / f"rows-{index}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the process was killed while it wrote this line
            found.append(json.loads(line))
    return found


def last_step(directory) -> int:
    return max((each["step"] for each in given_rows(directory, 0)), default=0)


def write_examples(directory, count: int) -> None:
    directory.mkdir()
    for split, number in (("train", count), ("test", 8)):
        lines = (f"{'odd' if n % 2 else 'even'}\t{split} number {n}\n" for n in range(number))
        (directory / f"{split}.tsv").write_text("".join(lines))


def config_for(data, cache, programs, steps: int) -> dict:
    keys = dict(
        source="labelled_text_files", path=str(data), mixture=(), eval_split="test",
        packing=False, batch_size=BATCH, cache_dir=str(cache),
    )  # fmt: skip
    config = config_of(
        "encoder", Path("unused"), steps, data=keys, task=dict(objective="classify_text"),
        optimizer=dict(accumulate=1), checkpoint=dict(every=3),
        failure=dict(heartbeat_seconds=10),
    )  # fmt: skip
    return {**config, "compilation_cache": str(programs)}


@pytest.mark.parametrize(
    ("kills", "steps"), [(2, 12), pytest.param(10, 60, marks=pytest.mark.slow)]
)
def test_a_job_that_is_preempted_is_an_uninterrupted_one(kills, steps, url, tmp_path):
    """To the bit, and every example is seen once."""
    data, rng = tmp_path / "data", random.Random(kills)
    write_examples(data, BATCH * steps)
    upload_directory(data, f"{url}/data")
    (tmp_path / "undisturbed").mkdir()
    local = config_for(data, tmp_path / "cache", tmp_path / "programs", steps)
    with Job(local, str(tmp_path / "run"), tmp_path / "home", tmp_path / "undisturbed") as job:
        job.finish()

    run, rows = f"{url}/run", tmp_path / "rows"
    rows.mkdir()
    config = config_for(f"{url}/data", f"{url}/cache", f"{url}/programs", steps)
    for number in range(kills):
        # Some steps on, but not yet at the end, and then at any moment of a step or a save.
        target = last_step(rows) + rng.randint(1, max(2, 2 * steps // kills - 4))
        with Job(config, run, tmp_path / f"machine-{number}", rows) as job:
            job.until_step(min(target, steps - 2))
            time.sleep(rng.uniform(0, 1.5))
            job.kill(rng)
    with Job(config, run, tmp_path / "last-machine", rows) as job:
        job.finish()

    assert f"resuming {run} at step" in job.text
    assert saved_steps(run)[-1] == saved_steps(tmp_path / "run")[-1] == steps
    assert contents(remote_path(run), steps) == contents(tmp_path / "run", steps)
    ours, theirs = remote_path(run) / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl"
    assert without_times(ours.read_text()) == without_times(theirs.read_text())
    counts = Counter()
    for index in range(PROCESSES):
        expected = {e["step"]: e["rows"] for e in given_rows(tmp_path / "undisturbed", index)}
        given = given_rows(rows, index)
        assert all(expected[each["step"]] == each["rows"] for each in given)
        assert {each["step"] for each in given} == set(range(1, steps + 1))
        counts.update(row for each in expected.values() for row in each)
    assert set(counts.values()) == {1} and len(counts) == BATCH * steps
    assert any(name.endswith("-cache") for name in filesystem(run).find(f"{url}/programs"))
