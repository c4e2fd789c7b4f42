"""SHA-256 digests of a checkpoint's files, to detect damage.

Orbax does not notice a flipped bit. So each checkpoint has a manifest of its files with sizes and
digests, written before the checkpoint gets its final name: every complete checkpoint has one.
Most of a checkpoint is in one or two large files, so each part of a file has its own digest, and
all processor cores share the work.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MANIFEST = "digests.json"
# Orbax writes these after the manifest, and restores without them.
NOT_LISTED = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")
PART_BYTES = 2**25  # per digest, in new manifests; each manifest records its own number
BLOCK_BYTES = 2**20  # per read


class Part(NamedTuple):
    """A part of a file, which has its own digest."""

    name: str  # of the file
    start: int
    length: int


def record(directory: Path) -> None:
    """Writes the manifest of a directory."""
    sizes = {name: (directory / name).stat().st_size for name in sorted(_files(directory))}
    parts = [part for name, size in sizes.items() for part in _parts(name, size, PART_BYTES)]
    listed = {name: [size, PART_BYTES] for name, size in sizes.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(lambda part: _digest(directory, part), parts)
        for part, digest in zip(parts, digests, strict=True):
            listed[part.name].append(digest)
    text = json.dumps(listed, indent=1)
    # The manifest includes its own digest, to tell damage to it from damage to a file.
    lines = [hashlib.sha256(text.encode()).hexdigest(), text]
    (directory / MANIFEST).write_text("\n".join(lines) + "\n")


def fault(directory: Path) -> str | None:
    """Returns what is wrong with a checkpoint, naming one file; None if all files are intact."""
    path = directory / MANIFEST
    try:
        digest, _, text = path.read_text().partition("\n")
    except (OSError, ValueError):
        return f"{path} is missing or unreadable"
    text = text.removesuffix("\n")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        return f"{path} has changed since it was written"
    listed = json.loads(text)
    if missing := sorted(listed.keys() - set(_files(directory))):
        return f"{directory / missing[0]} is missing"
    expected = {}
    for name, (size, *digests) in listed.items():
        if (directory / name).stat().st_size != size:
            return f"{directory / name} has changed since it was written"
        if isinstance(digests[0], str):  # older manifests have one digest per file
            expected[Part(name, 0, size)] = digests[0]
        else:
            length, *digests = digests
            expected |= zip(_parts(name, size, length), digests, strict=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda part: _digest_or_reason(directory, part), expected)
        for part, digest in zip(expected, found, strict=True):
            if digest != expected[part]:
                return f"{directory / part.name} has changed since it was written"
    return None


def _files(directory: Path) -> Iterator[str]:
    for path in directory.rglob("*"):
        if path.is_file() and path.relative_to(directory).as_posix() not in NOT_LISTED:
            yield path.relative_to(directory).as_posix()


def _parts(name: str, size: int, length: int) -> list[Part]:
    return [Part(name, start, min(length, size - start)) for start in range(0, size, length)]


def _digest(directory: Path, part: Part) -> str:
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
        return str(error)
