import pytest

from input_pipeline.atomic_directory import make_directory_atomically


def test_a_directory_appears_complete_or_not_at_all(tmp_path):
    directory = tmp_path / "sub" / "made"

    def half(path):
        (path / "one").write_text("1")
        raise RuntimeError("in the middle")

    def complete(path):
        assert not directory.exists()
        (path / "one").write_text("1")

    with pytest.raises(RuntimeError, match="in the middle"):
        make_directory_atomically(directory, half)
    assert list(directory.parent.iterdir()) == []
    make_directory_atomically(directory, complete)
    assert [path.name for path in directory.parent.rglob("*")] == ["made", "one"]


def test_the_second_writer_keeps_the_existing_directory(tmp_path):
    directory = tmp_path / "made"

    def overtaken(path):
        make_directory_atomically(directory, lambda path: (path / "one").write_text("first"))
        (path / "one").write_text("second")  # its directory is gone

    make_directory_atomically(directory, overtaken)
    assert (directory / "one").read_text() == "first"
    make_directory_atomically(directory, lambda path: (path / "one").write_text("third"))
    assert (directory / "one").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_disk_errors_are_raised(tmp_path):
    def full(path):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        make_directory_atomically(tmp_path / "made", full)
