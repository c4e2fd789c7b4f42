"""The file of outputs: whole, or with what is needed to continue it."""

import errno
import json
import os

import pytest

from experiment.schema import ConfigError
from inference.answer_file import AnswerFile, digest_of
from training.exits import SaveFailedError

REQUEST = {"--seed": 1, "--stop": ("a",)}


def interrupted(path, texts, lines=5, **options):
    with (
        pytest.raises(KeyboardInterrupt),
        AnswerFile(str(path), REQUEST, lines, resume=False, **options) as file,
    ):
        for text in texts:
            file.write([text])
        raise KeyboardInterrupt


def test_a_complete_file_gets_its_name(tmp_path):
    path = tmp_path / "out"
    path.write_text("older")
    with AnswerFile(str(path), REQUEST, 3, resume=False) as file:
        file.write(["a\n", "b\n"])
        assert path.read_text() == "older"
        file.write(["ü\n"])
    assert path.read_text() == "a\nb\nü\n"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_is_continued_after_its_last_recorded_line(tmp_path):
    path = tmp_path / "out"
    interrupted(path, ["a\n", "two\nlines\n"])
    with (tmp_path / "out.part").open("a") as file:
        file.write("a line that a kill cut o")  # written, but not recorded
    with AnswerFile(str(path), REQUEST, 5, resume=True) as file:
        assert file.answered == 2
        file.write(["c\n"] * 3)
    assert path.read_text() == "a\ntwo\nlines\nc\nc\nc\n"
    assert os.listdir(tmp_path) == ["out"]


def test_nothing_is_overwritten_or_mixed(tmp_path):
    path = tmp_path / "out"
    interrupted(path, ["a\n"])
    with pytest.raises(ConfigError, match=r"out\.part holds the outputs for 1 lines"):
        AnswerFile(str(path), REQUEST, 5, resume=False)
    with pytest.raises(ConfigError, match=r"begun with another --seed; repeat"):
        AnswerFile(str(path), {**REQUEST, "--seed": 2}, 5, resume=True)
    for content in ("", "[]", "{}", '{"lines": 9, "bytes": 2, "request": {}}', "\0"):
        (tmp_path / "out.part.json").write_text(content)
        with pytest.raises(ConfigError, match=r"^--resume: "):
            AnswerFile(str(path), REQUEST, 5, resume=True)
    assert (tmp_path / "out.part").read_text() == "a\n"


def test_resume_without_an_earlier_file_begins(tmp_path):
    with AnswerFile(str(tmp_path / "out"), REQUEST, 1, resume=True) as file:
        assert file.answered == 0
        file.write(["a\n"])
    assert (tmp_path / "out").read_text() == "a\n"


def test_resume_does_not_replace_a_complete_file(tmp_path):
    (tmp_path / "out").write_text("answers")
    with pytest.raises(ConfigError, match=r"--resume: there is no .*out\.part to continue"):
        AnswerFile(str(tmp_path / "out"), REQUEST, 1, resume=True)
    assert (tmp_path / "out").read_text() == "answers"


def test_a_record_that_is_nested_deeply_does_not_fit(tmp_path):
    interrupted(tmp_path / "out", ["a\n"])
    (tmp_path / "out.part.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="does not fit"):
        AnswerFile(str(tmp_path / "out"), REQUEST, 2, resume=True)


def test_an_interruption_before_the_first_output_leaves_nothing(tmp_path):
    interrupted(tmp_path / "out", [])
    assert os.listdir(tmp_path) == []


def test_a_full_disk_says_what_is_kept(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self._file = file

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name):
            return getattr(self._file, name)

    with (
        pytest.raises(SaveFailedError, match=r"No space left on device\): the outputs for 1 of 2"),
        AnswerFile(str(tmp_path / "out"), REQUEST, 2, resume=False) as file,
    ):
        file.write(["a\n"])
        file._file = Full(file._file)
        file.write(["b\n"])
    assert json.loads((tmp_path / "out.part.json").read_text())["lines"] == 1


def test_digests_tell_lines_apart():
    different = [["a", "b"], ["ab"], ["b", "a"], ["a", "b", ""], []]
    assert len({digest_of(lines) for lines in different}) == len(different)
