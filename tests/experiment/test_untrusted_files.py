"""Untrusted files: pipes, bombs, deep JSON, and panics become short errors that name the file."""

import gzip
import io
import os
import socket
import zlib

import pytest

from experiment import untrusted_files
from experiment.schema import ConfigError


@pytest.fixture
def kinds(tmp_path):
    """A path of each kind that is not a regular file, with the word in the message."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    yield {
        tmp_path / "pipe": "a named pipe",
        tmp_path / "directory": "a directory",
        tmp_path / "socket": "a socket",
        "/dev/zero": "a device",
    }
    listener.close()


def test_only_regular_files_are_opened(kinds, tmp_path):
    for path, what in kinds.items():
        with pytest.raises(ConfigError, match=f"{path} is {what}, not a file; copy"):
            untrusted_files.read_text(path, 100)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="link is a named pipe"):
        untrusted_files.require_regular(tmp_path / "link")
    assert untrusted_files.require_regular(tmp_path / "missing") == tmp_path / "missing"
    with pytest.raises(ConfigError, match=r"'a\\x00b' is not a file name"):
        untrusted_files.require_regular("a\0b")


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "a"
    path.write_text("x" * 100)
    assert untrusted_files.read_text(path, 100) == "x" * 100
    with pytest.raises(ConfigError, match="a has more than 99 bytes"):
        untrusted_files.read_text(path, 99)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * 201 + "]" * 201, "nested more than 200 deep"),
        ('{"a":' * 201 + "1" + "}" * 201, "nested more than 200 deep"),
        ('[[], {"a": %s}]' % ("[" * 199 + "]" * 199), "nested more than 200 deep"),
        ("1e400", "too large"),
        ("[-1e999]", "too large"),
        ("9" * 400, "too large"),
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("9" * 5000, "too large"),
    ],
)
def test_json_that_programs_stumble_over_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        untrusted_files.parse_json(text)


def test_json_up_to_the_bounds_is_read():
    assert untrusted_files.parse_json("[" * 200 + "]" * 200)
    assert untrusted_files.parse_json('{"a": [1.5, 1e308, "NaN", null, 12345678901234567890]}') == {
        "a": [1.5, 1e308, "NaN", None, 12345678901234567890]
    }


def decompressed(content: bytes) -> bytes:
    return untrusted_files.decompress(io.BytesIO(content), "a.gz")


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(untrusted_files, "SMALL_CONTENT", 2**20)
    monkeypatch.setattr(untrusted_files, "BLOCK", 2**16)
    text = b"".join(b"%d\n" % n for n in range(300_000))  # 2 MB; expands fourfold
    assert decompressed(gzip.compress(text)) == text
    assert decompressed(gzip.compress(bytes(2**20))) == bytes(2**20)  # small, so harmless
    bomb = gzip.compress(bytes(2**24))
    with pytest.raises(
        ConfigError, match=r"a\.gz expands to more than 1,638,400 bytes from 16,328"
    ):
        decompressed(bomb)
    with pytest.raises(ConfigError, match=r"a\.gz is not a whole gzip file"):
        decompressed(gzip.compress(text)[:-9])
    several = gzip.compress(b"one") + gzip.compress(b"two")  # as `cat a.gz b.gz` writes them
    assert decompressed(several) == zlib.decompress(zlib.compress(b"onetwo"))


def test_a_panic_becomes_an_error():
    class PanicException(BaseException):
        pass

    refused = pytest.raises(ValueError, match="the library failed on it: index out of bounds")
    with refused, untrusted_files.no_panic():
        raise PanicException("index out of bounds")
    with pytest.raises(KeyboardInterrupt), untrusted_files.no_panic():
        raise KeyboardInterrupt
