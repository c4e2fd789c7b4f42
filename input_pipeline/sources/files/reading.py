"""Reads the user's files: found by path, directory or glob; plain or gzip; line by line."""

import functools
import glob
import hashlib
import io
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from experiment.untrusted_files import decompress, parse_json
from input_pipeline.sources.base import BadRecordError

BYTE_ORDER_MARK = "\ufeff".encode()
UTF_16_MARKS = b"\xff\xfe", b"\xfe\xff"
HEAD = 2**12  # bytes at the start that tell UTF-16 apart
GZIP = b"\x1f\x8b"
BACKUPS = ("~", ".bak", ".orig", ".swp")  # endings
BLOCK = 2**26  # bytes searched for line ends at a time


def find_files(path: str) -> list[Path]:
    """The files of a path, a directory or a glob, sorted."""
    if not path:
        raise ConfigError("data.path is empty; set it to a file, a directory or a glob")
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        found = [p for p in place.rglob("*") if not is_hidden(p.relative_to(place))]
        found = [p for p in found if not (is_backup(p) or _is_of_a_run(p, place))]
    else:
        found = [Path(p) for p in glob.glob(str(place), recursive=True)]
    found = sorted(p for p in found if p.is_file())
    if not found:
        raise ConfigError(f"data.path={path} matches no file; check it for a typing error")
    return found


def is_hidden(path: Path) -> bool:
    """Whether a part of the path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def is_backup(path: Path) -> bool:
    """Whether an editor wrote the file as a copy of another, whose text would count twice."""
    return path.name.endswith(BACKUPS) or path.name[0] == path.name[-1] == "#"


def _is_of_a_run(path: Path, top: Path) -> bool:
    """Whether the file belongs to a run directory, which may be inside the text's directory."""
    return any((d / "checkpoints").is_dir() for d in path.parents if d.is_relative_to(top))


def read_bytes(path: Path) -> bytes | mmap.mmap:
    """The content of a file: decompressed if it is gzip, else memory-mapped."""
    try:
        with path.open("rb") as file:
            if not path.is_file():  # a pipe can be read only once, and has no size
                content = file.read()
                is_gzip = content.startswith(GZIP)
                return decompress(io.BytesIO(content), path) if is_gzip else content
            if file.read(2) == GZIP:
                return decompress(file, path)
            if not path.stat().st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def read_text(path: Path) -> bytes | mmap.mmap:
    """The content of a text file; raises ConfigError if it is UTF-16.

    English in UTF-16 without a mark is valid UTF-8 too, with a zero byte beside every letter.
    """
    content = read_bytes(path)
    head = content[:HEAD]
    if head[:2] in UTF_16_MARKS or head.count(0) * 4 > len(head):
        raise ConfigError(
            f"{path} is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 {path} > NEW"
        )
    return content


class Lines(Sequence):
    """The lines of a file by number, without line ends; and the digest of the file."""

    def __init__(self, path: Path):
        self.path = path
        self._content = read_text(path)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self._content).hexdigest()

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        content = np.frombuffer(self._content, np.uint8)
        blocks = range(0, len(content), BLOCK)
        found = [start + np.flatnonzero(content[start : start + BLOCK] == 10) for start in blocks]
        ends = np.concatenate([*found, np.empty(0, np.int64)])
        unfinished = len(content) and content[-1] != ord("\n")
        return np.append(ends, len(content)) if unfinished else ends

    def __len__(self):
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        line = self._content[self._ends[index - 1] + 1 if index else 0 : self._ends[index]]
        if index == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            return line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise self.bad(index, f"not valid UTF-8 ({error.reason})") from error

    def bad(self, index: int, what: str) -> BadRecordError:
        """An error that names the file, the line and the problem."""
        return BadRecordError(f"{self.path}:{index + 1}: {what}")

    def text(self, index: int, key: str, value: Any) -> str:
        """The value, checked to be non-empty text."""
        if not isinstance(value, str) or not value.strip():
            raise self.bad(index, f"{key} is empty or not text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.bad(index, f"{key} has half of a character ({error.reason})") from error
        return value

    def json(self, index: int, *keys: str) -> dict[str, Any]:
        """The JSON object in a line, checked to have these keys."""
        try:
            record = parse_json(self[index], _unique)
        except ValueError as error:
            if isinstance(error, BadRecordError):
                raise
            raise self.bad(index, f"not JSON ({error})") from error
        if not isinstance(record, dict):
            raise self.bad(index, "not a JSON object")
        missing = [key for key in keys if key not in record]
        if missing:
            raise self.bad(index, f"lacks {', '.join(map(repr, missing))}")
        return record

    def __reduce__(self):
        return Lines, (self.path,)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError if it has a key twice, of which one would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found
