"""The records of a run that must outlast it: written again if they are deleted while it goes on."""

import os
from collections.abc import Callable
from pathlib import Path

# Without config.json and model.json nothing can use a checkpoint; see checkpointing/.
PATTERNS = ("config.json", "model.json", "origins.json", "environment.json", "tokenizer*.json")


class KeptRecords:
    """Remembers the small files that a run wrote at its start.

    `restore` writes those again that are missing or changed since. It reads a file only if its
    inode, size or time is another one.
    """

    def __init__(self, workdir: Path, log: Callable[[str], None]):
        self._log = log
        paths = sorted({path for pattern in PATTERNS for path in workdir.glob(pattern)})
        self._contents = {path: path.read_bytes() for path in paths}
        self._states = {path: _state(path) for path in paths}

    def restore(self) -> None:
        """Writes missing or changed files again, with a warning. Called before each save."""
        for path, content in self._contents.items():
            state = _state(path)
            if state == self._states[path]:
                continue
            try:
                if state is None or path.read_bytes() != content:
                    what = "deleted" if state is None else "changed"
                    new = path.with_name(f"{path.name}.new")
                    new.write_bytes(content)
                    new.replace(path)
                    self._log(f"warning: {path} was {what} while the run went on: written again")
            except OSError as error:  # a full disk ends a run only if a checkpoint does not fit
                self._log(f"warning: {path} is gone and cannot be written again ({error})")
            self._states[path] = _state(path)


def _state(path: Path) -> tuple[int, int, int] | None:
    """What another file, or other content, would not have in common; None: there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
