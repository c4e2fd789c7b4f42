"""Reads files that are not trusted: published models, tokenizers, data.

Nothing here trusts what a file says about itself. A reader checks the kind of file before it opens
it (a pipe would make it wait for ever), the size before it allocates, and turns what a library does
with a hostile file into a ConfigError that names the file.
"""

import contextlib
import gzip
import io
import json
import math
import stat
import zlib
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from experiment.schema import ConfigError

LARGEST_JSON = 2**24  # the most bytes of a config or an index
DEEPEST_JSON = 200  # nested lists and objects; transformers' configs have about 5
# Text shrinks to a tenth or a fifth. Only made files shrink to a hundredth, so those above this
# size are taken for an attempt to fill the memory.
LARGEST_EXPANSION, SMALL_CONTENT = 100, 2**28
BLOCK = 2**22

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)


def require_regular(path: str | PathLike) -> Path:
    """Returns the path; raises ConfigError if it is a pipe, a device, a socket or a directory.

    A file that does not exist is not refused here: whoever opens it knows what it is for.
    """
    try:
        mode = Path(path).stat().st_mode
    except ValueError as error:  # a zero byte, or half of a character, in the name
        raise ConfigError(f"{str(path)!r} is not a file name ({error}); rename the file") from error
    except OSError:
        return Path(path)
    for is_kind, what in _KINDS:
        if is_kind(mode):
            raise ConfigError(f"{path} is {what}, not a file; copy its content to a file")
    return Path(path)


def read_bytes(path: str | PathLike, most: int) -> bytes:
    """Returns the content of a file; raises ConfigError if it has more than `most` bytes."""
    with require_regular(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"{path} has more than {most:,} bytes; download it again")
    return content


def read_text(path: str | PathLike, most: int) -> str:
    """Returns the content of a UTF-8 file; raises ConfigError if it has more than `most` bytes."""
    return read_bytes(path, most).decode("utf-8")


def parse_json(text: str | bytes, unique: Callable[..., dict] | None = None) -> Any:
    """Parses JSON; raises ValueError for what Python's parser accepts and programs stumble over.

    Those are: deep nesting, numbers beyond float64, also integers, NaN and infinity. `unique`
    builds objects from their pairs.
    """
    try:
        found = json.loads(
            text, parse_float=_finite, parse_int=_finite_int, parse_constant=_no_constant,
            object_pairs_hook=unique,
        )  # fmt: skip
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _is_deeper(found, DEEPEST_JSON):
        raise ValueError(f"nested more than {DEEPEST_JSON} deep")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _is_deeper(content: Any, most: int) -> bool:
    level = [content]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [x for each in level for x in (each.values() if isinstance(each, dict) else each)]
    return True


def decompress(file: BinaryIO, path: str | PathLike) -> bytes:
    """Returns the content of an open gzip file; raises ConfigError if it is damaged, or a bomb."""
    found, compressed = io.BytesIO(), file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file) as reader:
            while block := reader.read(BLOCK):
                found.write(block)
                if found.tell() > max(SMALL_CONTENT, LARGEST_EXPANSION * compressed):
                    raise ConfigError(
                        f"{path} expands to more than {found.tell():,} bytes from {compressed:,}, "
                        "which looks like an attempt to fill the memory; if its content is right, "
                        "decompress it first: gunzip"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    return found.getvalue()


@contextlib.contextmanager
def no_panic() -> Iterator[None]:
    """Raises a panic of a library in Rust as ValueError.

    Its class is no Exception but a BaseException without an importable name, so that `except
    Exception` misses it.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library failed on it: {error}") from error
