"""The same job on one process of eight devices, and on two of four."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schema import ConfigError
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
    """What they print, once all of them have come to a good end."""
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
def test_variables_that_say_too_little_are_named(monkeypatch, variables, message):
    for name in (processes.ADDRESS, processes.COUNT, processes.INDEX):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        processes.join()


def test_a_lone_task_of_slurm_joins_nobody(monkeypatch):
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


def test_processes_that_mean_different_things_are_told_apart(monkeypatch):
    monkeypatch.setattr(processes.jax, "process_count", lambda: 3)
    monkeypatch.setattr(
        processes, "process_allgather", lambda mine: [mine, mine, mine + (mine == mine.max())]
    )
    with pytest.raises(ConfigError, match="data_digest differs between process 0 and process 2;"):
        processes.refuse_disagreement({"data_digest": "abc"})
