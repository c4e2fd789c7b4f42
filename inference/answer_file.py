"""A file of outputs that keeps what is answered so far, whatever ends the program.

Until all lines are answered, the outputs are in FILE.part, in the order of the lines, and
FILE.part.json says how many lines these are and what they answer.
"""

import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

from experiment.schema import ConfigError
from storage.object_store import as_os_errors, filesystem, is_remote
from training.exits import SaveFailedError


class AnswerFile:
    """Writes outputs to a temporary file, which gets its name when all lines are answered.

    A context manager. `answered` is the number of lines that an earlier, interrupted program has
    answered.
    """

    def __init__(self, path: str, request: Mapping[str, Any], lines: int, *, resume: bool):
        """`request`: what the outputs depend on, by the name that an error message gives it."""
        self._given, self._lines, self.answered = path, lines, 0
        self._request = json.loads(json.dumps(request))
        self.path = Path(path).resolve()  # the target of a link, which stays
        self._part = self.path.with_name(self.path.name + ".part")
        self._record = self.path.with_name(self.path.name + ".part.json")
        size = 0
        if self._record.exists() and self._part.exists():
            self.answered, size = self._begun(resume)
        elif resume and self.path.exists():
            raise ConfigError(
                f"--resume: there is no {self._part} to continue, and {self.path} exists: it is "
                "complete, or another command wrote it; remove it, or leave out --resume, to write "
                "it again"
            )
        try:
            self._file = self._part.open("ab")
            self._file.truncate(size)
        except OSError as error:
            raise ConfigError(f"--output={path} cannot be written: {error.strerror}") from error

    def _begun(self, resume: bool) -> tuple[int, int]:
        """The number of lines that are answered, and the size of their outputs."""
        try:
            record = json.loads(self._record.read_text())
            answered, size, request = int(record["lines"]), int(record["bytes"]), record["request"]
            is_whole = 0 <= size <= self._part.stat().st_size and 0 <= answered <= self._lines
            different = sorted(
                name
                for name in {*request, *self._request}
                if request.get(name) != self._request.get(name)
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            answered, size, is_whole, different = 0, 0, False, []
        if not resume:
            if answered and size:
                raise ConfigError(
                    f"{self._part} holds the outputs for {answered:,} lines of an interrupted "
                    "command: continue it with --resume, or remove that file"
                )
            return 0, 0
        if different:
            raise ConfigError(
                f"--resume: {self._part} was begun with another {', '.join(different)}; repeat "
                "that command, or remove that file to begin again"
            )
        if not is_whole:
            raise ConfigError(
                f"--resume: {self._record} does not fit {self._part}, so nothing shows which lines "
                "are answered; remove both to begin again"
            )
        return answered, size

    def write(self, texts: Sequence[str]) -> None:
        """Writes the outputs of the next lines, one text for each line."""
        try:
            self._file.write("".join(texts).encode())
            self._file.flush()
            self.answered += len(texts)
            record = {
                "lines": self.answered, "bytes": self._file.tell(), "request": self._request,
            }  # fmt: skip
            new = self._record.with_name(self._record.name + ".new")
            new.write_text(json.dumps(record))
            new.replace(self._record)
        except OSError as error:
            raise SaveFailedError(
                f"--output={self._given} cannot be written ({error.strerror or error}): "
                f"{self.so_far}"
            ) from error

    @property
    def so_far(self) -> str:
        """What is kept of an interrupted command, in words."""
        return (
            f"the outputs for {self.answered:,} of {self._lines:,} lines are in {self._part}; the "
            "same command with --resume continues"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self._file.close()
            if kind is None:
                self._part.replace(self.path)
        except OSError as failed:
            if kind is None:
                raise SaveFailedError(
                    f"--output={self._given} cannot be written ({failed.strerror or failed})"
                ) from failed
        if kind is None or not self.answered:
            self._record.unlink(missing_ok=True)
            self._part.unlink(missing_ok=True)


def digest_of(lines: Sequence[str]) -> str:
    """A digest of the lines, in order."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def is_regular(path: str) -> bool:
    """Whether a path is, or can become, a local file that a temporary one can replace."""
    return not is_remote(path) and (Path(path).is_file() or not Path(path).exists())


def refuse_unwritable(path: Path) -> None:
    """Refuses at the start an output file that cannot be written."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--output={path} cannot be written: {error.strerror}") from error
    if not existed:
        path.unlink()


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Opens the file, or standard output, which a reader such as `head` may close early.

    An object in a bucket is written at the end, as far as it got.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="output-") as directory:
            local = Path(directory, "output")
            try:
                with opened(str(local)) as file:
                    yield file
            finally:
                with as_os_errors():
                    filesystem(path).put_file(str(local), path)
        return
    if path:
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest
        sys.exit(1)
