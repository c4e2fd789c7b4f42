import gzip
import os
import pickle
import threading

import pytest

from experiment.schema import ConfigError
from input_pipeline.sources.base import BadRecordError
from input_pipeline.sources.files import reading
from input_pipeline.sources.files.reading import Lines, find_files


def written(path, content, *, zipped=False):
    data = content if isinstance(content, bytes) else content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("\n", [""]),
        ("one", ["one"]),
        ("one\n", ["one"]),
        ("one\ntwo\n", ["one", "two"]),
        ("one\ntwo", ["one", "two"]),
        ("one\n\ntwo\n", ["one", "", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("one\rtwo\n", ["one\rtwo"]),
        ("\ufeffone\ntwo\n", ["one", "two"]),
        ("one\n\ufefftwo\n", ["one", "\ufefftwo"]),
        ("é\u2028\u0085x\n漢\n", ["é\u2028\u0085x", "漢"]),
    ],
)
def test_lines_end_with_a_line_feed_and_nothing_else(content, expected, zipped, tmp_path):
    lines = Lines(written(tmp_path / "a", content, zipped=zipped))
    assert [lines[i] for i in range(len(lines))] == expected
    with pytest.raises(IndexError):
        lines[len(expected)]


def test_lines_are_found_block_by_block(tmp_path, monkeypatch):
    content = "".join(f"{'x' * (n % 7)}{n}\n" for n in range(200))
    path = written(tmp_path / "a", content)
    monkeypatch.setattr(reading, "BLOCK", 10)
    assert list(Lines(path)) == content.splitlines()


def test_gzip_is_known_by_its_content_and_changes_no_digest(tmp_path):
    plain = Lines(written(tmp_path / "plain", "one\ntwo\n"))
    zipped = Lines(written(tmp_path / "zipped", "one\ntwo\n", zipped=True))
    other = Lines(written(tmp_path / "other", "one\ntwa\n", zipped=True))
    assert plain.digest == zipped.digest != other.digest


@pytest.mark.parametrize("zipped", [False, True])
def test_a_pipe_is_read_to_its_end(zipped, tmp_path):
    content, path = b"one\ntwo\n" * 20_000, tmp_path / "pipe"  # more than a pipe holds
    os.mkfifo(path)
    given = gzip.compress(content, 0) if zipped else content
    writing = threading.Thread(target=path.write_bytes, args=[given], daemon=True)
    writing.start()
    assert list(Lines(path)) == ["one", "two"] * 20_000
    writing.join()


def test_lines_can_be_pickled(tmp_path):
    lines = Lines(written(tmp_path / "a", "one\ntwo\n"))
    assert list(pickle.loads(pickle.dumps(lines))) == ["one", "two"]


def test_invalid_utf_8_is_refused_with_file_and_line(tmp_path):
    lines = Lines(written(tmp_path / "a.txt", b"fine\nb\xe9ta\nfine\n"))
    with pytest.raises(BadRecordError, match=r"a\.txt:2: not valid UTF-8"):
        lines[1]
    assert (lines[0], lines[2]) == ("fine", "fine")


@pytest.mark.parametrize("damage", [lambda z: z[:-9], lambda z: z[:40] + b"xxxx" + z[44:]])
def test_a_damaged_gzip_is_refused_by_name(damage, tmp_path):
    zipped = gzip.compress("".join(f"line {n * n}\n" for n in range(100)).encode())
    path = written(tmp_path / "a.txt.gz", damage(zipped))
    with pytest.raises(ConfigError, match=r"a\.txt\.gz is not a whole gzip file"):
        Lines(path)


def test_a_file_that_is_gone_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="gone cannot be read: No such file"):
        Lines(tmp_path / "gone")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", r"not JSON \("),
        ("[1]", "not a JSON object"),
        ('{"b": 1}', "lacks 'a'"),
        ('{"a": 1, "b": 2, "a": 3}', r"not JSON \(the key 'a' is there twice\)"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        ('{"a": ' * 5000, r"not JSON \(nested too deeply"),
        ('{"a": 1e999}', r"not JSON \(the number 1e999 is too large"),
    ],
)
def test_a_line_that_is_no_json_object_with_its_keys(line, reason, tmp_path):
    lines = Lines(written(tmp_path / "a", line))
    with pytest.raises(BadRecordError, match=f"a:1: {reason}"):
        lines.json(0, "a")


def test_files_are_found_by_name_directory_and_glob(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/d.md", ".hidden", ".git/e.txt"):
        written(tmp_path / name, "x")

    def names(path):
        return [str(p.relative_to(tmp_path)) for p in find_files(str(path))]

    assert names(tmp_path / "b.txt") == ["b.txt"]
    assert names(tmp_path) == ["a.txt", "b.txt", "sub/c.txt", "sub/d.md"]
    assert names(tmp_path / "*.txt") == ["a.txt", "b.txt"]
    assert names(tmp_path / "**/*.txt") == ["a.txt", "b.txt", "sub/c.txt"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/sub") == ["sub/c.txt", "sub/d.md"]


def test_copies_that_editors_leave_are_no_text(tmp_path):
    copies = ("a.txt~", "a.txt.bak", "a.txt.orig", "a.txt.swp", "#a.txt#", ".a.txt.swp")
    for name in ("a.txt", "b#", *copies):
        written(tmp_path / name, "x")
    assert [path.name for path in find_files(str(tmp_path))] == ["a.txt", "b#"]
    assert find_files(str(tmp_path / "a.txt~")) == [tmp_path / "a.txt~"]  # if it is asked for


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("zipped", [False, True])
def test_utf_16_is_refused_with_the_way_out(encoding, zipped, tmp_path):
    path = written(tmp_path / "a", "good\ta fine film\n".encode(encoding), zipped=zipped)
    with pytest.raises(ConfigError, match=r"a is UTF-16, not UTF-8; convert it: iconv -f UTF-16"):
        Lines(path)
    few_zeros = written(tmp_path / "b", b"a fine\0film\n")
    assert list(Lines(few_zeros)) == ["a fine\0film"]


def test_a_path_to_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is empty; set it to a file, a directory"):
        find_files("")
    for path in (tmp_path / "gone", tmp_path / "*.txt", tmp_path):
        with pytest.raises(ConfigError, match="matches no file; check it for a typing error"):
            find_files(str(path))
