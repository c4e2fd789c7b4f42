"""Directories that appear complete or not at all, even if several processes make them."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from experiment.schema import ConfigError


def make_directory_atomically(directory: Path, make: Callable[[Path], None]) -> None:
    """Calls `make` on a temporary directory, then renames that to `directory`.

    If another process was faster, its directory stays: it has the same content.
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
    # Remove the leftovers of killed processes. A process that is still writing fails here, finds
    # `directory`, and uses it.
    for left in directory.parent.glob(f"{unfinished}*"):
        shutil.rmtree(left, ignore_errors=True)


def make_directory(path: Path) -> Path:
    """Makes a directory, or raises a ConfigError that names data.cache_dir."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data.cache_dir={path.parent} cannot be written ({error.strerror}); choose another"
        ) from error
    return path
