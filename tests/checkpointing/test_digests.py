"""Digests of checkpoint files: every changed or missing file is found and named."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from checkpointing import digests
from experiment.schema import ConfigError


@pytest.fixture(params=[digests.PART_BYTES, 1024, 1000])  # 25,600 bytes are one part, 25 or 26
def directory(request, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "PART_BYTES", request.param)
    monkeypatch.setattr(digests, "BLOCK_BYTES", 300)
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "params" / "d" / "data").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "params" / "empty").touch()
    (tmp_path / "metadata").write_text("{}")
    digests.record(tmp_path)
    assert digests.fault(tmp_path) is None
    return tmp_path


@pytest.mark.parametrize("name", ["params/d/data", "metadata", digests.MANIFEST])
def test_every_flipped_bit_is_found_and_its_file_named(directory, name):
    path = directory / name
    original = path.read_bytes()
    for place in {0, len(original) // 2, len(original) - 2}:
        for bit in range(8):
            path.write_bytes(
                original[:place] + bytes([original[place] ^ 1 << bit]) + original[place + 1 :]
            )
            assert str(path) in digests.fault(directory)
    path.write_bytes(original)
    assert digests.fault(directory) is None


@pytest.mark.parametrize("name", ["params/d/data", digests.MANIFEST])
def test_truncated_and_missing_files_are_named(directory, name):
    path = directory / name
    original = path.read_bytes()
    for changed in (original[:-10], original[:-1024], original + b" ", b""):
        path.write_bytes(changed)
        assert str(path) in digests.fault(directory)
    path.unlink()
    assert str(path) in digests.fault(directory)


def test_read_errors_are_reported_and_never_recorded_as_a_digest(directory, monkeypatch):
    def unreadable(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(digests, "_digest", unreadable)
    assert str(directory) in digests.fault(directory)
    with pytest.raises(OSError, match="Input/output error"):
        digests.record(directory)


@pytest.mark.parametrize("name", ["params/d/data", digests.MANIFEST])
def test_a_file_that_may_not_be_read_is_not_taken_for_a_damaged_one(directory, name, monkeypatch):
    """Root may read all files, so the refusal is simulated."""
    forbidden, opened = directory / name, Path.open

    def refusing(path, *args, **options):
        if path == forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", refusing)
    with pytest.raises(ConfigError) as refused:
        digests.fault(directory)
    assert "may not be read" in str(refused.value) and str(forbidden) in str(refused.value)


def test_a_directory_that_may_not_be_listed_is_not_taken_for_a_missing_one(directory, monkeypatch):
    def refusing(top, onerror):
        onerror(PermissionError(errno.EACCES, "Permission denied", str(directory / "params")))

    monkeypatch.setattr(digests.os, "walk", refusing)
    with pytest.raises(ConfigError, match=r"params may not be read"):
        digests.fault(directory)


def test_a_list_says_itself_how_long_its_parts_are(directory, monkeypatch):
    monkeypatch.setattr(digests, "PART_BYTES", 512)
    assert digests.fault(directory) is None


def test_files_that_orbax_writes_last_are_ignored(directory):
    (directory / "commit_success.txt").write_text("done")
    (directory / "_CHECKPOINT_METADATA").write_text("{}")
    assert digests.fault(directory) is None


def test_a_list_with_one_digest_for_each_file_is_still_read(directory):
    names = ["metadata", "params/d/data", "params/empty"]
    contents = {name: (directory / name).read_bytes() for name in names}
    listed = {
        name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in contents.items()
    }
    text = json.dumps(listed)
    manifest = f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n"
    (directory / digests.MANIFEST).write_text(manifest)
    assert digests.fault(directory) is None
    path = directory / "params/d/data"
    path.write_bytes(b"x" + contents["params/d/data"][1:])
    assert str(path) in digests.fault(directory)


@pytest.mark.parametrize("name", ["params/d/data", digests.MANIFEST])
@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_faults_that_are_not_read(directory, name, target):
    (directory / name).unlink()
    if target == "pipe":
        os.mkfifo(directory / name)
    else:
        (directory / name).symlink_to(target)
    assert str(directory / name) in digests.fault(directory)
