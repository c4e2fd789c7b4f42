"""Directories that are there complete or not at all, whoever else is making them."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from experiment.schema import ConfigError


def make_directory_atomically(directory: Path, make: Callable[[Path], None]) -> None:
    """Has `make` fill a directory under another name, which then becomes `directory` at once.

    If another process was faster, that is as good: it has made the same.
    """
    unfinished = f"{directory.name}.making-"
    making = make_directory(directory.with_name(f"{unfinished}{uuid.uuid4().hex}"))
    try:
        make(making)
        making.rename(directory)
    except OSError:
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    # Left by a process that was killed. One that is alive finds out that it was too slow.
    for left in directory.parent.glob(f"{unfinished}*"):
        shutil.rmtree(left, ignore_errors=True)


def make_directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data.cache_dir={path.parent} cannot be written ({error.strerror}); choose another"
        ) from error
    return path
