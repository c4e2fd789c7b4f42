"""Small runs in a bucket, compared with the same run on a disk."""

import json
import time
from pathlib import Path

import numpy as np

from checkpointing.checkpoint_manager import saved_steps
from storage.object_store import remote_path
from tests.runs import TINY, saved

STEPS = 6


def without_times(lines: str) -> list[dict]:
    """The metrics of each line that do not depend on the clock."""
    reports = map(json.loads, lines.splitlines())
    return [{k: v for k, v in each.items() if not k.startswith("perf/")} for each in reports]


def assert_same_run(url: str, local: Path, steps: list[int]) -> None:
    """The records, samples and checkpoints of a run are those of a run on a disk, to the bit."""
    remote = remote_path(url)
    assert set(steps) <= set(saved_steps(url))
    ours = (remote / "metrics.jsonl").read_text()
    assert without_times(ours) == without_times((local / "metrics.jsonl").read_text())
    for name in ("config.json", "model.json", "tokenizer.json"):
        assert (remote / name).read_bytes() == (local / name).read_bytes()
    for path in (local / "samples").iterdir():
        assert (remote / "samples" / path.name).read_bytes() == path.read_bytes()
    for step in steps:
        a, b = saved(remote, step), saved(local, step)
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def flags_of(config: dict) -> list[str]:
    given = [f"--config.{s}.{k}={v}" for s, values in TINY.items() for k, v in values.items()]
    return [*given, f"--config.steps={config['steps']}", "--config.log_every=1"]


def wait_for(path, process) -> None:
    end = time.monotonic() + 600
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, path
        time.sleep(0.05)
