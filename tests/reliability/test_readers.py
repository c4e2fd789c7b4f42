"""Row 32: a run is loaded while its trainer saves and prunes checkpoints."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import train
from checkpointing import loaded_run
from checkpointing.checkpoint_manager import saved_steps
from tests.reliability.commands import ROOT, config_of


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished") / "run"
    train.train_and_evaluate(config_of("decoder", texts, 2), workdir)
    return workdir


def save_and_prune(checkpoints: Path, step: int, ended: threading.Event) -> None:
    """What a trainer with checkpoint.keep=1 that saves every step does to the directory.

    Orbax takes longer for a save than the pause here. Without one, no reader would ever be done.
    """
    while not ended.wait(0.1):
        new = checkpoints / f"{step + 1}.orbax-checkpoint-tmp"
        shutil.copytree(checkpoints / str(step), new)
        new.rename(checkpoints / str(step + 1))
        for path in sorted((checkpoints / str(step)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (checkpoints / str(step)).rmdir()
        step += 1


READER = """
import json, sys
from checkpointing import loaded_run
print(json.dumps([loaded_run.load(sys.argv[1]).step for _ in range(int(sys.argv[2]))]))
"""


@pytest.mark.parametrize("loads", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_every_load_finds_a_whole_checkpoint(loads, finished, tmp_path, figure):
    run = shutil.copytree(finished, tmp_path / "run")
    ended = threading.Event()
    arguments = run / "checkpoints", saved_steps(run)[-1], ended
    trainer = threading.Thread(target=save_and_prune, args=arguments)
    trainer.start()
    try:
        # A process of its own: Orbax leaves the other reads behind when one of them fails.
        reader = subprocess.run(
            [sys.executable, "-c", READER, str(run), str(loads)],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        ended.set()
        trainer.join()
    assert reader.returncode == 0, reader.stderr
    steps = json.loads(reader.stdout)
    assert steps == sorted(steps) and steps[0] < steps[-1]
    figure(32, f"{loads} loads, all good, while {saved_steps(run)[-1] - 2} checkpoints were saved")


def test_a_damaged_checkpoint_is_not_taken_for_a_pruned_one(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    step = saved_steps(run)[-1]
    os.truncate(run / "checkpoints" / str(step) / "digests.json", 10)
    with pytest.raises(ValueError, match=r"digests\.json has changed since it was written"):
        loaded_run.load(run)
