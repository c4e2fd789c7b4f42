"""A checkpoint's files are what was written, or the one that is not is named."""

import errno
import hashlib

import pytest

from training import digests


@pytest.fixture
def directory(tmp_path):
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
    whole = path.read_bytes()
    for place in {0, len(whole) // 2, len(whole) - 2}:
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert str(path) in digests.fault(directory)
    path.write_bytes(whole)
    assert digests.fault(directory) is None


@pytest.mark.parametrize("name", ["params/d/data", digests.MANIFEST])
def test_what_is_gone_in_part_or_whole_is_named(directory, name):
    path = directory / name
    path.write_bytes(path.read_bytes()[:-10])
    assert str(path) in digests.fault(directory)
    path.unlink()
    assert str(path) in digests.fault(directory)


def test_a_disk_that_cannot_read_is_a_fault_but_never_a_digest(directory, monkeypatch):
    def unreadable(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(hashlib, "file_digest", unreadable)
    assert str(directory) in digests.fault(directory)
    with pytest.raises(OSError, match="Input/output error"):
        digests.record(directory)


def test_orbax_may_write_its_own_last_words(directory):
    (directory / "commit_success.txt").write_text("done")
    (directory / "_CHECKPOINT_METADATA").write_text("{}")
    assert digests.fault(directory) is None
