"""What the files of a checkpoint were when they were written, to tell later if they still are.

Orbax reads a file in which a bit has changed without a word. So each checkpoint has a list of its
files with their sizes and SHA-256 digests, written before the checkpoint gets its name: one that
is complete has the list. Most of a checkpoint is in one or two large files, so that there is a
digest for each part of them, and all processors have something to do.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MANIFEST = "digests.json"
# Orbax writes these after the list, and restores without them.
NOT_LISTED = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")
PART_BYTES = 2**25  # that have a digest, from now on: every list says how many it has
BLOCK_BYTES = 2**20  # that are read at a time


class Part(NamedTuple):
    name: str  # of the file
    start: int
    length: int


def record(directory: Path) -> None:
    """Writes the list of what is in the directory."""
    sizes = {name: (directory / name).stat().st_size for name in sorted(_files(directory))}
    parts = [part for name, size in sizes.items() for part in _parts(name, size, PART_BYTES)]
    listed = {name: [size, PART_BYTES] for name, size in sizes.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(lambda part: _digest(directory, part), parts)
        for part, digest in zip(parts, digests, strict=True):
            listed[part.name].append(digest)
    text = json.dumps(listed, indent=1)
    # The list has a digest too, or a bit of it that flips would accuse a file that is sound.
    lines = [hashlib.sha256(text.encode()).hexdigest(), text]
    (directory / MANIFEST).write_text("\n".join(lines) + "\n")


def fault(directory: Path) -> str | None:
    """What is wrong with the files of a checkpoint, naming one of them; None if nothing is."""
    path = directory / MANIFEST
    try:
        digest, _, text = path.read_text().partition("\n")
    except (OSError, ValueError):
        return f"{path} is missing or unreadable"
    text = text.removesuffix("\n")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        return f"{path} is not what was written"
    listed = json.loads(text)
    if missing := sorted(listed.keys() - set(_files(directory))):
        return f"{directory / missing[0]} is missing"
    expected = {}
    for name, (size, *digests) in listed.items():
        if (directory / name).stat().st_size != size:
            return f"{directory / name} is not what was written"
        if isinstance(digests[0], str):  # of the whole file, as lists were before there were parts
            expected[Part(name, 0, size)] = digests[0]
        else:
            length, *digests = digests
            expected |= zip(_parts(name, size, length), digests, strict=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda part: _digest_or_reason(directory, part), expected)
        for part, digest in zip(expected, found, strict=True):
            if digest != expected[part]:
                return f"{directory / part.name} is not what was written"
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
    """A file that a disk can no longer read is not what was written, either."""
    try:
        return _digest(directory, part)
    except OSError as error:
        return str(error)
