"""SHA-256 digests of a checkpoint's files, to detect damage.

Orbax does not notice a flipped bit. So each checkpoint has a manifest of its files with sizes and
digests, written before the checkpoint gets its final name: every complete checkpoint has one.
Most of a checkpoint is in one or two large files, so each part of a file has its own digest, and
all processor cores share the work.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from experiment.schema import ConfigError
from experiment.untrusted_files import require_regular
from storage.object_store import as_os_errors, is_remote, read_range, sizes_below

MANIFEST = "digests.json"
# Orbax writes these after the manifest, and restores without them.
NOT_LISTED = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")
PART_BYTES = 2**25  # per digest, in new manifests; each manifest records its own number
BLOCK_BYTES = 2**20  # per read
REMOTE_READS = 8  # parts that are read from a bucket at the same time


class Part(NamedTuple):
    """A part of a file, which has its own digest."""

    name: str  # of the file
    start: int
    length: int


def record(directory: Path) -> None:
    """Writes the manifest of a directory."""
    sizes = dict(sorted(_sizes(directory).items()))
    parts = [part for name, size in sizes.items() for part in _parts(name, size, PART_BYTES)]
    listed = {name: [size, PART_BYTES] for name, size in sizes.items()}
    with ThreadPoolExecutor(_threads(directory)) as pool:
        digests = pool.map(lambda part: _digest(directory, part), parts)
        for part, digest in zip(parts, digests, strict=True):
            listed[part.name].append(digest)
    text = json.dumps(listed, indent=1)
    # The manifest includes its own digest, to tell damage to it from damage to a file.
    lines = [hashlib.sha256(text.encode()).hexdigest(), text]
    (directory / MANIFEST).write_text("\n".join(lines) + "\n")


def flush(directory: Path) -> None:
    """Makes the operating system write a directory to the disk, with all that is below it."""
    for parent, _, names in os.walk(directory):
        for name in names:
            flush_entry(Path(parent, name))
        flush_entry(Path(parent))


def flush_entry(path: Path) -> None:
    """Makes the operating system write one file, or the names in one directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fault(directory: Path) -> str | None:
    """Returns what is wrong with a checkpoint, naming one file; None if all files are intact.

    Raises ConfigError if a bucket cannot be reached, or if this user may not read the files: that
    says nothing about the checkpoint.
    """
    try:
        return _fault(directory)
    except OSError as error:
        if not is_remote(directory):
            raise ConfigError(
                f"{error.filename or directory} may not be read ({error.strerror}); give this user "
                "the right to read the checkpoint, and run the same command again"
            ) from error
        raise ConfigError(
            f"{directory} cannot be read ({error.strerror or error}); check your credentials and "
            "the network, and run the same command again"
        ) from error


def _irregular(path: Path) -> str | None:
    """What is wrong if a path is a pipe or a device, which reading might never end; else None."""
    if is_remote(path):
        return None
    try:
        require_regular(path)
    except ConfigError as error:
        return str(error)
    return None


def _fault(directory: Path) -> str | None:
    path, sizes = directory / MANIFEST, _sizes(directory)
    if fault := _irregular(path):
        return fault
    try:
        with as_os_errors():
            digest, _, text = path.read_text().partition("\n")
    except (OSError, ValueError) as error:
        _raise_if_unreachable(directory, error)
        return f"{path} is missing or unreadable"
    text = text.removesuffix("\n")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        return f"{path} has changed since it was written"
    listed = json.loads(text)
    if missing := sorted(listed.keys() - sizes.keys()):
        return f"{directory / missing[0]} is missing"
    expected = {}
    for name, (size, *digests) in listed.items():
        if fault := _irregular(directory / name):
            return fault
        if sizes[name] != size:
            return f"{directory / name} has changed since it was written"
        if isinstance(digests[0], str):  # older manifests have one digest per file
            expected[Part(name, 0, size)] = digests[0]
        else:
            length, *digests = digests
            expected |= zip(_parts(name, size, length), digests, strict=True)
    with ThreadPoolExecutor(_threads(directory)) as pool:
        found = pool.map(lambda part: _digest_or_reason(directory, part), expected)
        for part, digest in zip(expected, found, strict=True):
            if digest != expected[part]:
                return f"{directory / part.name} has changed since it was written"
    return None


def _sizes(directory: Path) -> dict[str, int]:
    """Returns the sizes of the files that a manifest lists, by name."""
    if is_remote(directory):
        found = sizes_below(directory)
    else:
        # Unlike rglob, this does not pass over directories that may not be read.
        walk = os.walk(directory, onerror=_raise)
        paths = (Path(parent, name) for parent, _, names in walk for name in names)
        found = {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}
    return {name: size for name, size in found.items() if name not in NOT_LISTED}


def _threads(directory: Path) -> int:
    """A disk is as fast as the processor computes digests; a network has delays."""
    return REMOTE_READS if is_remote(directory) else os.cpu_count()


def _raise(error: OSError) -> None:
    raise error


def _raise_if_unreachable(directory: Path, error: Exception) -> None:
    """Raises an error that is about network, credentials or permissions, not about the file."""
    is_about_file = isinstance(error, FileNotFoundError) or not isinstance(error, OSError)
    if isinstance(error, PermissionError) or (is_remote(directory) and not is_about_file):
        raise error


def _parts(name: str, size: int, length: int) -> list[Part]:
    return [Part(name, start, min(length, size - start)) for start in range(0, size, length)]


def _digest(directory: Path, part: Part) -> str:
    if is_remote(directory):
        data = read_range(directory / part.name, part.start, part.length)
        return hashlib.sha256(data).hexdigest()
    digest, left = hashlib.sha256(), part.length
    with (directory / part.name).open("rb") as file:
        file.seek(part.start)
        while left and (block := file.read(min(left, BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _digest_or_reason(directory: Path, part: Part) -> str:
    """Returns the digest, or the reason why the disk cannot read the file."""
    try:
        return _digest(directory, part)
    except OSError as error:
        _raise_if_unreachable(directory, error)
        return str(error)
