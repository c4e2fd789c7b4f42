"""data.cache_dir in a bucket: directories that appear there complete or not at all.

    URL/<name>.json           written last: the files of the directory, with sizes and SHA-256
    URL/<name>/<random>/...   the files that it names
    URL/<name>.partial/...    finished chunks of a table that is being made

A local disk has a copy of every directory that is used, because rows are read in random order from
files that are mapped into memory. docs/platforms.md says why a complete copy.
"""

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from absl import logging

from experiment.schema import ConfigError
from input_pipeline.atomic_directory import make_directory, make_directory_atomically
from storage.object_store import (
    as_os_errors,
    filesystem,
    read_range,
    refuse_unwritable_object,
    remote_path,
    remove_below,
)

KEY = "data.cache_dir"
PART_BYTES = 2**25  # per request
REQUESTS = 8  # at the same time: each waits for the network
BLOCK = 2**20  # bytes that are hashed at a time


class LocalCache:
    """data.cache_dir on a disk: nothing is copied."""

    url = ""

    def make(self, directory: Path, make: Callable[[Path], None]) -> None:
        """Makes a directory, unless it is there."""
        if not directory.exists():
            make_directory_atomically(directory, make)

    def fetch(self, directory: Path) -> bool:
        """Copies a published directory to the disk; returns whether there was one."""
        return False

    def publish(self, directory: Path) -> None:
        """Publishes a directory of the disk, unless there is one of its name."""

    def discard(self, directory: Path) -> None:
        """Takes back what was published."""

    def partial(self, directory: Path) -> Path:
        """Where the chunks of a table are written, which then becomes `directory`."""
        return make_directory(directory.with_name(f"{directory.name}.partial"))

    def remove(self, partial: Path) -> None:
        """Removes the chunks of a table."""
        shutil.rmtree(partial, ignore_errors=True)


class BucketCache(LocalCache):
    """data.cache_dir in a bucket, with copies on a disk. Directories are called by their names."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._files = filesystem(url)
        self._is_writable = False

    def make(self, directory: Path, make: Callable[[Path], None]) -> None:
        if not (directory.exists() or self.fetch(directory)):
            make_directory_atomically(directory, make)
        self.publish(directory)

    def fetch(self, directory: Path) -> bool:
        if not (record := self._record(directory.name)):
            return False
        files = {name: tuple(what) for name, what in record["files"].items()}
        source = f"{self.url}/{directory.name}/{record['place']}"
        needed = sum(size for size, _ in files.values())
        make_directory(directory.parent)
        if needed > (free := shutil.disk_usage(directory.parent).free):
            raise ConfigError(
                f"{KEY}={self.url}: {directory.name} has {needed / 1e9:,.1f} GB, and "
                f"{directory.parent} has {free / 1e9:,.1f} GB left; make room there, or make it a "
                "link to a larger disk"
            )
        try:
            make_directory_atomically(directory, lambda path: self._download(source, files, path))
        except (FileNotFoundError, ValueError) as error:
            logging.warning("%s is damaged and will be made again: %s", source, error)
            self.discard(directory)
            return False
        except OSError as error:
            raise self._refusal("read", error) from error
        return True

    def publish(self, directory: Path) -> None:
        name, place = directory.name, secrets.token_hex(8)
        try:
            if self._record(name):
                return
            self._refuse_unwritable()
            target, paths = f"{self.url}/{name}/{place}", _files_below(directory)
            with ThreadPoolExecutor(REQUESTS) as pool, as_os_errors():
                put = lambda each: self._files.put_file(str(paths[each]), f"{target}/{each}")  # noqa: E731
                list(pool.map(put, paths))
                files = {each: [path.stat().st_size, _digest(path)] for each, path in paths.items()}
            self._commit(name, {"place": place, "files": files})
        except OSError as error:
            raise self._refusal("written", error) from error

    def discard(self, directory: Path) -> None:
        try:
            with contextlib.suppress(FileNotFoundError), as_os_errors():
                self._files.rm_file(f"{self.url}/{directory.name}.json")
        except OSError as error:
            raise self._refusal("written", error) from error

    def _commit(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes the object that publishes a directory; the first of several writers counts."""
        data = json.dumps(record, indent=1).encode()
        try:
            with as_os_errors():
                self._files.pipe_file(f"{self.url}/{name}.json", data, mode="create")
        except FileExistsError:
            remove_below(f"{self.url}/{name}/{record['place']}")  # another process was faster

    def partial(self, directory: Path) -> Path:
        self._refuse_unwritable()
        return remote_path(f"{self.url}/{directory.name}.partial")

    def remove(self, partial: Path) -> None:
        try:
            remove_below(partial)
        except OSError as error:
            logging.warning("%s was not removed: %s", partial, error)

    def _refuse_unwritable(self) -> None:
        if not self._is_writable:
            refuse_unwritable_object(KEY, f"{self.url}/cache")
            self._is_writable = True

    def _record(self, name: str) -> Mapping[str, Any]:
        """What publishes a directory; empty if there is none."""
        try:
            with as_os_errors():
                record = json.loads(self._files.cat_file(f"{self.url}/{name}.json"))
            return record if record["place"] and record["files"] else {}
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return {}
        except OSError as error:
            raise self._refusal("read", error) from error

    def _download(self, source: str, files: Mapping[str, tuple[int, str]], directory: Path) -> None:
        def fetch(part: tuple[str, int, int]) -> None:
            name, start, length = part
            data = read_range(remote_path(f"{source}/{name}"), start, length)
            with (directory / name).open("r+b") as file:
                file.seek(start)
                file.write(data)

        parts = []
        for name, (size, _) in files.items():
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise ValueError(f"it has a file named {name!r}")
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
            starts = range(0, size, PART_BYTES)
            parts += [(name, start, min(PART_BYTES, size - start)) for start in starts]
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(fetch, parts))
        for name, (_, digest) in files.items():
            if _digest(directory / name) != digest:
                raise ValueError(f"{name} has changed since it was written")

    def _refusal(self, verb: str, error: OSError) -> ConfigError:
        return ConfigError(
            f"{KEY}={self.url} cannot be {verb} ({error.strerror or error}); check the bucket, "
            "your credentials and the network"
        )


def _files_below(directory: Path) -> dict[str, Path]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path for path in paths}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            digest.update(data)
    return digest.hexdigest()
