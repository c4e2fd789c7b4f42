"""The same job on one process of eight devices, and on two of four."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiment.schema import ConfigError
from training import processes

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "--config.model.width=16", "--config.model.heads=2", "--config.model.feed_forward=16",
    "--config.model.encoder_layers=1", "--config.model.decoder_layers=1", "--config.steps=3",
    "--config.data.batch_size=16", "--config.eval.batch_size=16", "--config.eval.batches=1",
    "--config.log_every=1", "--config.mesh.fsdp=2", "--config.model.dropout_residual=0.1",
    "--config.optimizer.warmup_steps=1",
]  # fmt: skip


def start(workdir: Path, devices: int, **variables: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "train.py", f"--workdir={workdir}", *SMALL],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*jobs: subprocess.Popen) -> list[str]:
    """The output of the processes, once all have succeeded."""
    try:
        outputs = [job.communicate(timeout=300) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * len(jobs), outputs
    return [out for out, _ in outputs]


def losses(workdir: Path) -> list[float]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    one, two = tmp_path / "one", tmp_path / "two"
    ended(start(one, devices=8))
    common = {processes.ADDRESS: f"localhost:{port}", processes.COUNT: "2"}
    pair = [start(two, devices=4, **common, **{processes.INDEX: str(n)}) for n in range(2)]
    first, second = ended(*pair)
    assert json.loads(first.splitlines()[-1])["step"] == 3
    assert '"step"' not in second  # what the job has once is printed once
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    assert len(losses(two)) == 3
    assert json.loads((two / "environment.json").read_text())["processes"] == 2
    assert not list(two.glob(".shared-*"))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({processes.ADDRESS: "host:1"}, "JAX_NUM_PROCESSES must be a number, not ''"),
        (
            {processes.ADDRESS: "host:1", processes.COUNT: "2", processes.INDEX: "one"},
            "JAX_PROCESS_ID must be a number, not 'one'",
        ),
        (
            {processes.ADDRESS: "host:1", processes.COUNT: "2", processes.INDEX: "2"},
            "JAX_PROCESS_ID=2 must be below JAX_NUM_PROCESSES=2",
        ),
    ],
)
def test_missing_process_variables_are_named(monkeypatch, variables, message):
    for name in (processes.ADDRESS, processes.COUNT, processes.INDEX):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        processes.join()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((address, f"{re.escape(address)} must be host:port of the first process")
          for address in ("host0", "host0:", ":1234", "host0:0", "host0:65536", "host0:1:2",
                          "http://host0", "[::1]", "::1:1234", "host0:¹")),
        ("no.such.host.invalid:1234", "the host was not found within 0 s "),
        (f"{'x' * 70}.org:1234", "the host was not found within 0 s "),
    ],
)  # fmt: skip
def test_an_address_that_leads_nowhere_is_refused(monkeypatch, address, message):
    monkeypatch.setattr(processes, "RESOLVE_SECONDS", 0.0)
    monkeypatch.setattr(processes.jax.distributed, "initialize", pytest.fail)
    for name, value in {processes.ADDRESS: address, processes.COUNT: "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(processes.INDEX, "1")
    with pytest.raises(ConfigError, match=message) as refused:
        processes.join()
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("address", ["localhost:1234", "127.0.0.1:65535", "[::1]:1"])
def test_an_address_is_passed_on(monkeypatch, address):
    calls = []
    monkeypatch.setattr(
        processes.jax.distributed, "initialize", lambda **given: calls.append(given)
    )
    for name, value in {processes.ADDRESS: address, processes.COUNT: "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(processes.INDEX, "1")
    processes.join(heartbeat_seconds=7, join_seconds=9)
    ((given,),) = [calls]
    assert given["coordinator_address"] == address
    assert given["heartbeat_timeout_seconds"] == 7
    assert given["initialization_timeout"] > 9  # ours ends first


def test_a_single_slurm_task_does_not_initialize_distributed(monkeypatch):
    calls = []
    monkeypatch.setattr(
        processes.jax.distributed, "initialize", lambda **given: calls.append(given)
    )
    monkeypatch.setattr(processes, "_is_tpu_host", lambda: False)
    monkeypatch.delenv(processes.ADDRESS, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    for tasks, joins in (("1", 0), ("8", 1)):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
        processes.join()
        assert len(calls) == joins


def test_a_data_digest_that_differs_between_processes_is_refused(monkeypatch):
    monkeypatch.setattr(processes.jax, "process_count", lambda: 3)
    monkeypatch.setattr(
        processes, "process_allgather", lambda mine: [mine, mine, mine + (mine == mine.max())]
    )
    with pytest.raises(ConfigError, match="data_digest differs between process 0 and process 2;"):
        processes.refuse_disagreement({"data_digest": "abc"})


class Job:
    """Threads in place of processes, each with its own path to the directory."""

    def __init__(self, *workdirs: Path):
        self._workdirs, self._texts = workdirs, [""] * len(workdirs)
        self._barrier = threading.Barrier(len(workdirs), timeout=10)

    def compare(self, problems: dict[int, str] | None = None, seconds: float = 0.2):
        """The refusal of each process, or None."""
        count = len(self._workdirs)
        with ThreadPoolExecutor(count) as pool:
            jobs = [
                pool.submit(self._one, index, (problems or {}).get(index, ""), seconds)
                for index in range(count)
            ]
            refusals = [job.exception() for job in jobs]
        assert all(each is None or isinstance(each, ConfigError) for each in refusals), refusals
        return [each and str(each) for each in refusals]

    def _one(self, index, problem, seconds):
        def gather(text):
            self._texts[index] = text
            self._barrier.wait()
            texts = list(self._texts)
            self._barrier.wait()
            return texts

        workdir = self._workdirs[index]
        processes.compare_directories(workdir, problem, index, gather, seconds)


def test_processes_that_share_a_directory_are_accepted(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")  # hosts may have it under other names
    job = Job(tmp_path / "run", tmp_path / "link", tmp_path / "run")
    assert job.compare() == [None] * 3
    assert list((tmp_path / "run").iterdir()) == []


def test_a_directory_that_is_not_shared_is_named_on_every_process(tmp_path):
    for name in ("run", "other"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)  # a run that is resumed
    job = Job(tmp_path / "run", tmp_path / "run", tmp_path / "other")
    refusals = job.compare()
    for index, refusal in enumerate(refusals):
        assert f"wrote a file to {tmp_path}/run, but not all of the 3 processes see it" in refusal
        assert re.search(rf"process 2 on \S+: did not find it in {tmp_path}/other", refusal)
        assert "process 1 on" not in refusal
        assert refusal.endswith(f"this is process {index}")
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_processes_wait_for_a_file_that_appears_late(tmp_path):
    (tmp_path / "run").mkdir()
    late = tmp_path / "late"

    def appear():
        time.sleep(0.3)
        late.symlink_to(tmp_path / "run")

    with ThreadPoolExecutor() as pool:
        pool.submit(appear)
        assert Job(tmp_path / "run", late).compare(seconds=10) == [None] * 2


def test_every_process_names_the_one_that_cannot_write(tmp_path):
    (tmp_path / "run").mkdir()
    job = Job(tmp_path / "run", tmp_path / "run")
    for refusal in job.compare({1: "workdir run cannot be written (Read-only file system)"}):
        assert re.search(r"process 1 on \S+: workdir run cannot be written \(Read-only", refusal)
    for refusal in job.compare({0: "workdir run cannot be written (Read-only file system)"}):
        assert re.match(r"process 0 on \S+: workdir run cannot be written \(Read-only", refusal)
    missing = Job(tmp_path / "run" / "gone", tmp_path / "run")
    assert all("cannot be written (No such file" in each for each in missing.compare())
    assert list((tmp_path / "run").iterdir()) == []


def test_an_error_lists_the_first_of_many_processes(tmp_path):
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
    refusals = Job(tmp_path / "run", *[tmp_path / "other"] * 9).compare()
    for refusal in refusals:
        assert len(refusal.splitlines()) == 7
        assert "and 5 other processes" in refusal


def test_gathered_texts_are_complete(monkeypatch):
    monkeypatch.setattr(processes, "process_allgather", lambda mine: [mine, mine[::-1][::-1]])
    text = json.dumps({"path": "ü" * 256, "problem": "\N{SNOWMAN}" * 256, "host": "h" * 64})
    assert processes.gather_texts(text) == [text, text]
