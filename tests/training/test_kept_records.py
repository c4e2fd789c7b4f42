"""Records that are deleted while a run goes on are back at its next checkpoint."""

import json
import os
import shutil

import pytest

import train
from checkpointing import loaded_run, run_directory
from configs import digits
from tests.runs import tiny
from training.kept_records import KeptRecords
from training.loop import Loop
from training.metric_writers import JsonLines, TensorBoard

NAMES = ("config.json", "model.json", "environment.json")


@pytest.fixture
def said():
    return []


@pytest.fixture
def watched(tmp_path, said):
    for name in NAMES:
        (tmp_path / name).write_text(f"the content of {name}")
    return KeptRecords(tmp_path, said.append)


@pytest.mark.parametrize("name", NAMES)
def test_a_deleted_or_changed_record_is_written_again(watched, tmp_path, said, name):
    watched.restore()
    assert said == []
    (tmp_path / name).unlink()
    watched.restore()
    (tmp_path / name).write_text("something else")
    watched.restore()
    watched.restore()
    assert [line.split(" was ")[1].split()[0] for line in said] == ["deleted", "changed"]
    assert all(str(tmp_path / name) in line for line in said)
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)
    for each in NAMES:
        assert (tmp_path / each).read_text() == f"the content of {each}"


def test_a_copy_with_the_same_content_is_left_alone(watched, tmp_path, said):
    path = tmp_path / "config.json"
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    inode = path.stat().st_ino
    watched.restore()
    assert said == []
    assert path.stat().st_ino == inode


def test_a_record_that_cannot_be_written_is_told_of(watched, tmp_path, said):
    shutil.rmtree(tmp_path)
    watched.restore()
    assert len(said) == len(NAMES)
    assert all("cannot be written again" in line for line in said)


@pytest.mark.parametrize("other", [None, '{"step": 9}\n'])
def test_metrics_are_written_again_from_the_open_file(tmp_path, other):
    path = tmp_path / JsonLines.NAME
    path.write_text('{"step": 1}\n')
    lines = JsonLines(tmp_path, 1)
    lines.write(2, {"loss": 0.5})
    assert lines.restore(2) == ""
    path.unlink()
    if other is not None:
        path.write_text(other)
    assert f"was {'deleted' if other is None else 'replaced'} while" in lines.restore(2)
    lines.write(3, {"loss": 0.25})
    lines.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.25},
    ]  # fmt: skip


def test_deleted_events_are_followed_by_another_file(tmp_path):
    board = TensorBoard(tmp_path, 0, {})
    board.write(1, {"loss": 0.5})
    assert board.restore(1) == ""
    shutil.rmtree(tmp_path / TensorBoard.NAME)
    assert "was deleted while the run went on" in board.restore(1)
    board.write(2, {"loss": 0.25})
    board.close()
    (path,) = (tmp_path / TensorBoard.NAME).iterdir()
    assert b"loss" in path.read_bytes()


def test_a_run_keeps_its_records(tmp_path, monkeypatch, capsys):
    """All records are deleted after its third step; what it leaves can be used."""
    step = Loop._step

    def deleting_step(loop, state, batch):
        if loop._newest_step == 3:
            for name in (*NAMES, JsonLines.NAME):
                (tmp_path / name).unlink()
        loop._newest_step += 1
        return step(loop, state, batch)

    monkeypatch.setattr(Loop, "_newest_step", 1, raising=False)
    monkeypatch.setattr(Loop, "_step", deleting_step)
    config = tiny(digits, 6, checkpoint=dict(every=2), eval=dict(every=0, batches=1, samples=0))
    train.train_and_evaluate({**config, "log_every": 1}, tmp_path)
    errors = capsys.readouterr().err
    for name in (*NAMES, JsonLines.NAME):
        assert f"warning: {tmp_path / name} was deleted while the run went on" in errors
    reports = map(json.loads, (tmp_path / JsonLines.NAME).read_text().splitlines())
    assert [each["step"] for each in reports if "train/loss" in each] == [1, 2, 3, 4, 5, 6]
    assert run_directory.read_config(tmp_path)["steps"] == 6
    assert loaded_run.load(tmp_path).step == 6
