"""What the files of a checkpoint were when they were written, to tell later if they still are.

Orbax reads a file in which a bit has changed without a word. So each checkpoint has a list of its
files with their sizes and SHA-256 digests, written before the checkpoint gets its name: one that
is complete has the list.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MANIFEST = "digests.json"
# Orbax writes these after the list, and restores without them.
NOT_LISTED = (MANIFEST, "_CHECKPOINT_METADATA", "commit_success.txt")


def record(directory: Path) -> None:
    """Writes the list of what is in the directory."""
    files = sorted(_files(directory))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(lambda name: _digest(directory / name), files)
        text = json.dumps(dict(zip(files, digests, strict=True)), indent=1)
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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(lambda name: _digest_or_reason(directory / name), listed)
        for name, digest in zip(listed, digests, strict=True):
            if digest != listed[name]:
                return f"{directory / name} is not what was written"
    return None


def _files(directory: Path) -> Iterator[str]:
    for path in directory.rglob("*"):
        if path.is_file() and path.relative_to(directory).as_posix() not in NOT_LISTED:
            yield path.relative_to(directory).as_posix()


def _digest(path: Path) -> list[int | str]:
    """Its size and the SHA-256 of its contents."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), digest]


def _digest_or_reason(path: Path) -> list[int | str]:
    """A file that a disk can no longer read is not what was written, either."""
    try:
        return _digest(path)
    except OSError as error:
        return [0, str(error)]
