"""Rows 7 to 10: checkpoints whose files changed, are gone or could not be written."""

import random
import re
import shutil
import subprocess

import jax
import pytest

import train
from checkpointing import digests
from checkpointing.checkpoint_manager import Checkpoints, saved_steps
from experiment import sections
from experiment.schema import ConfigError
from tests.reliability.commands import Command, config_of, contents
from training.exits import SaveFailedError

TRIALS = 200


def config(texts, steps, **sections):
    return config_of("decoder", texts, steps, checkpoint=dict(every=2, keep=9), **sections)


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    """A run with checkpoints at 2, 4 and 6."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    train.train_and_evaluate(config(texts, 6), workdir)
    assert saved_steps(workdir) == [2, 4, 6]
    return workdir


@pytest.fixture
def run(finished, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def files_of(workdir, step):
    directory = workdir / "checkpoints" / str(step)
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_flipped_bit_is_never_read(texts, finished, tmp_path, monkeypatch, figure):
    """Either the checkpoint is refused by its file's name, or what is restored is what was saved.

    The latter is so for the few bytes that Orbax writes last, of which nothing is restored.
    """
    shapes, restore = [], Checkpoints.restore
    monkeypatch.setattr(
        Checkpoints, "restore", lambda *args: shapes.append(args[-1]) or restore(*args)
    )
    train.train_and_evaluate(config(texts, 6), shutil.copytree(finished, tmp_path / "sound"))
    settings = sections.from_mapping(config(texts, 6)).checkpoint

    def restored(run):
        """What a run would go on from, and what it would say."""
        said = []
        with Checkpoints(run, settings) as checkpoints:
            step = checkpoints.newest_valid(said.append)
            state = restore(checkpoints, step, shapes[0])
        return step, [leaf.tobytes() for leaf in jax.tree.leaves(jax.device_get(state))], said

    expected = {4: None, 6: restored(tmp_path / "sound")[1]}
    shutil.rmtree(tmp_path / "sound" / "checkpoints" / "6")
    expected[4] = restored(tmp_path / "sound")[1]
    assert expected[4] != expected[6]

    rng = random.Random(0)
    # Each file once; else each byte is as likely as any other, as on a disk.
    files = [path for path in files_of(finished, 6) if path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    found, harmless = 0, 0
    for path in [*files, *rng.choices(files, sizes, k=TRIALS)][:TRIALS]:
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished, run)
        damaged = run / path.relative_to(finished)
        data = bytearray(damaged.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(data)
        step, contents, said = restored(run)
        assert contents == expected[step]
        if step == 6:
            assert damaged.name in digests.NOT_LISTED
            harmless += 1
        else:
            assert str(damaged) in said[0]
            found += 1
    figure(7, f"{TRIALS} flips: {found} found and named, {harmless} in what is not read, 0 wrong")


@pytest.mark.parametrize(
    "damage",
    [
        "flipped",
        *(pytest.param(d, marks=pytest.mark.slow) for d in ("truncated", "deleted", "emptied")),
    ],
)
def test_the_newest_intact_checkpoint_is_restored(damage, texts, finished, run, capsys, figure):
    path = max(files_of(run, 6), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(data[:50] + bytes([data[50] ^ 4]) + data[51:])
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "deleted":
            path.unlink()
        case "emptied":
            shutil.rmtree(run / "checkpoints" / "6")
            (run / "checkpoints" / "6").mkdir()
    train.train_and_evaluate(config(texts, 6), run)
    said = capsys.readouterr().err
    assert "continuing from step 4 instead of 6" in said
    assert "at step 4" in said
    assert contents(run, 6) == contents(finished, 6)
    assert [path.name for path in (run / "corrupt").iterdir()] == ["6"]
    figure(8, f"{damage}: went on from 4, naming both; final state byte-identical")


def test_a_run_without_an_intact_checkpoint_does_not_start_over(texts, run):
    for step in (2, 4, 6):
        path = run / "checkpoints" / str(step) / "params" / "_METADATA"
        path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ConfigError, match=r"all checkpoints in .* are damaged \(.*put a good"):
        train.train_and_evaluate(config(texts, 8), run)
    assert saved_steps(run) == [2, 4, 6]


def test_leftovers_of_an_interrupted_save_are_removed(texts, finished, run, figure):
    leftover = run / "checkpoints" / "8.orbax-checkpoint-tmp"
    shutil.copytree(run / "checkpoints" / "6", leftover)
    (run / "config.json.new").write_text("{")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "train/lo')
    train.train_and_evaluate(config(texts, 6), run)
    assert not leftover.exists()
    assert contents(run, 6) == contents(finished, 6)
    figure(9, "a half-written checkpoint, config.json.new and half a line: cleared away")


# Runs a command with a small disk at DIRECTORY, and copies what it left there to DIRECTORY-after.
SMALL_DISK = """
mount -t tmpfs -o size=3M tmpfs "$0" && "$@"
code=$?
cp -r "$0" "$0-after"
exit $code
"""
MOUNTING = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


def can_mount(directory) -> bool:
    try:
        tried = subprocess.run([*MOUNTING, SMALL_DISK, directory, "true"], capture_output=True)
    except OSError:
        return False
    return tried.returncode == 0


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_spoils_nothing(texts, tmp_path, figure, compiled_once):
    (tmp_path / "probe").mkdir()
    if not can_mount(tmp_path / "probe"):
        pytest.skip("needs a small disk of its own, which this system does not let users mount")
    disk = tmp_path / "run"
    disk.mkdir()
    long = config_of("decoder", texts, 10_000, checkpoint=dict(every=5, keep=1_000))
    inside = [*MOUNTING, SMALL_DISK, str(disk)]
    with Command(long, disk, inside=inside) as command:
        code = command.wait()
        assert code == SaveFailedError.exit_code, command.text
    (told,) = re.findall(r"the checkpoint of .*No space left.*", command.text)
    failed = re.search(r"of step (\d+) could not be written", told)
    assert "Traceback" not in command.text
    workdir = tmp_path / "run-after"
    steps = saved_steps(workdir)
    assert int(failed[1]) == steps[-1] + 5
    assert all(digests.fault(workdir / "checkpoints" / str(step)) is None for step in steps)
    train.train_and_evaluate({**long, "steps": steps[-1] + 5}, workdir)
    figure(10, f"exit code {code} at step {failed[1]}; {len(steps)} checkpoints before it sound")
