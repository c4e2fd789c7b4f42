"""The records of a run in object storage, as files in a local directory.

Objects cannot be appended to or locked, and each request takes milliseconds. So a run keeps its
records (config, metrics, samples, events for TensorBoard) in a temporary local directory, as on a
disk, and a thread copies the files that changed to the bucket. Checkpoints are not part of it:
Orbax writes them to the bucket itself.
"""

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from etils import epath

from experiment.schema import RUN_SCHEMES, ConfigError, refuse_remote
from storage import orbax_on_s3
from storage.object_store import as_os_errors, filesystem, is_remote, remote_path

SOURCE = ".mirror_of"  # the file of a mirror that holds the URL
# Directories of a run that are not mirrored, and those that are only written.
NOT_MIRRORED = ("checkpoints", "corrupt")
ONLY_WRITTEN = ("tensorboard", "profile", "wandb")
DOWNLOADS = 8  # at the same time: each waits for the network
UPLOAD_SECONDS = 60.0  # between uploads; a kill may lose what was recorded since
# Files with lines are stored as several objects, so that an upload never repeats more than this.
PART_BYTES = 2**20
PART = re.compile(r"(.*\.jsonl)\.part(\d{5})")


# The mirrors that this process made: one per URL, so that messages can name the URL instead.
_mirrors: dict[str, Path] = {}


def _directory(url: str) -> Path:
    if url not in _mirrors:
        parent = Path(tempfile.mkdtemp(prefix="run-"))
        atexit.register(shutil.rmtree, parent, ignore_errors=True)
        directory = parent / url.rsplit("/", 1)[-1]
        directory.mkdir()
        (directory / SOURCE).write_text(url)
        _mirrors[url] = directory
    return _mirrors[url]


def open_run_directory(name: str, workdir: str | os.PathLike) -> Path:
    """Returns a local directory with the records of a run; of a local run, its own directory.

    Each call brings the copy of a remote run up to date. `name` is the flag or key, for errors.
    """
    refuse_remote(name, workdir, RUN_SCHEMES)
    if not is_remote(workdir):
        return Path(workdir)
    mirror = Mirror(os.fspath(workdir))
    try:
        mirror.download()
    except OSError as error:
        raise ConfigError(
            f"{name}={workdir} cannot be read ({error.strerror}); check the bucket, your "
            "credentials and the network"
        ) from error
    return mirror.directory


def source_of(directory: str | os.PathLike) -> str:
    """Returns the URL whose mirror a directory is; "" for other directories."""
    if is_remote(directory):
        return os.fspath(directory).rstrip("/")
    try:
        return Path(directory, SOURCE).read_text()
    except OSError:
        return ""


def checkpoint_directory(workdir: str | os.PathLike, name: str) -> Path | epath.Path:
    """Returns where the checkpoints of a run are: in its directory, or in the bucket."""
    url = source_of(workdir)
    if url.startswith(orbax_on_s3.SCHEME):
        orbax_on_s3.enable()
    return remote_path(url) / name if url else Path(workdir, name).resolve()


def upload_file(workdir: Path, path: Path) -> None:
    """Uploads one file of a mirror, and no other: the run may be going on. Local: does nothing."""
    if url := source_of(workdir):
        with as_os_errors():
            Mirror(url).store(path.relative_to(workdir).as_posix(), path.read_bytes())


def with_urls(text: str) -> str:
    """Replaces the names of mirrors in a message by the URLs that the user knows."""
    for url, directory in _mirrors.items():
        text = text.replace(str(directory), url)
    return text


class Mirror:
    """A local copy of the records under a URL."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.directory = _directory(self.url)
        self._files = filesystem(url)
        # What is in the bucket: the size and time of each local file, and digests of its objects.
        self._stored: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, str] = {}
        self._lock = threading.Lock()

    def download(self) -> None:
        """Makes the local files equal to the records in the bucket."""
        found: dict[str, dict[int, bytes]] = {}
        with self._lock, as_os_errors():
            names = [name for name, _ in self._remote_entries()]
            with ThreadPoolExecutor(DOWNLOADS) as pool:
                contents = list(pool.map(lambda n: self._files.cat_file(f"{self.url}/{n}"), names))
            for name, data in zip(names, contents, strict=True):
                self._digests[name] = _digest(data)
                part = PART.fullmatch(name)
                file, number = (part[1], int(part[2])) if part else (name, 0)
                found.setdefault(file, {})[number] = data
            for name, _ in self._local_files():
                if name not in found:
                    (self.directory / name).unlink()
            for name, parts in found.items():
                path = self.directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                data = b"".join(parts[number] for number in sorted(parts))
                if not path.exists() or path.read_bytes() != data:
                    path.write_bytes(data)
                self._stored[name] = _state(path)

    def remote_version(self) -> str:
        """Returns a digest that changes with the records in the bucket; downloads nothing."""
        with as_os_errors():
            entries = sorted(
                (name, entry["size"], str(entry.get("generation") or entry.get("ETag")))
                for name, entry in self._remote_entries()
            )
        return _digest(repr(entries).encode())

    def _remote_entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name of each record, relative to the URL, and what the store says of it."""
        root = self.url.partition("://")[2]
        try:
            listed = self._files.ls(self.url, detail=True)
        except FileNotFoundError:
            return
        for entry in listed:
            name = entry["name"].rstrip("/").removeprefix(f"{root}/")
            if entry["type"] == "file":
                if name and name != root and not name.startswith("."):
                    yield name, entry
            elif name not in NOT_MIRRORED + ONLY_WRITTEN:
                found = self._files.find(f"{self.url}/{name}", detail=True)
                for below, entry in found.items():
                    yield below.removeprefix(f"{root}/"), entry

    def _local_files(self) -> Iterator[tuple[str, Path]]:
        for root, directories, names in os.walk(self.directory):
            if Path(root) == self.directory:
                directories[:] = [each for each in directories if each not in NOT_MIRRORED]
            for name in sorted(names):
                path = Path(root, name)
                if not name.startswith(".") and not name.endswith(".new"):
                    yield path.relative_to(self.directory).as_posix(), path

    def upload(self) -> None:
        """Copies files that changed to the bucket, and removes those that are gone."""
        with self._lock, as_os_errors():
            local = dict(self._local_files())
            for name in sorted(self._stored.keys() - local.keys()):
                self.store(name, b"")
                del self._stored[name]
            for name, path in local.items():
                try:
                    state, data = _state(path), path.read_bytes()
                except FileNotFoundError:
                    continue  # renamed since it was listed; the next upload finds it
                if self._stored.get(name) != state:
                    self.store(name, data)
                    self._stored[name] = state

    def store(self, name: str, data: bytes) -> None:
        """Stores a file as one object, or one with lines as parts. No data: removes it."""
        length = PART_BYTES if name.endswith(".jsonl") else max(len(data), 1)
        starts = range(0, len(data), length)
        parts = {_part(name, number): data[start : start + length] for number, start in
                 enumerate(starts)}  # fmt: skip
        if not data and (self.directory / name).exists():
            parts = {name: data}
        # Parts that are no longer needed go first, from the last: what is stored is at any time the
        # beginning of a file that was.
        old = (key for key in self._digests if key == name or key.startswith(f"{name}.part"))
        for key in sorted(set(old) - parts.keys(), reverse=True):
            self._files.rm_file(f"{self.url}/{key}")
            del self._digests[key]
        for key, part in parts.items():
            if self._digests.get(key) != (digest := _digest(part)):
                self._files.pipe_file(f"{self.url}/{key}", part)
                self._digests[key] = digest


def _part(name: str, number: int) -> str:
    return f"{name}.part{number:05d}" if number else name


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


class Uploader:
    """Uploads a mirror in the background, and at once where that is asked for."""

    def __init__(self, mirror: Mirror, warn: Callable[[str], None]):
        self._mirror, self._warn = mirror, warn
        self.is_complete = False  # whether the last upload, at the end, worked
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def __enter__(self) -> "Uploader":
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        self._thread.join()
        self.is_complete = self.upload()

    def _run(self) -> None:
        while not self._ended.wait(UPLOAD_SECONDS):
            self.upload()

    def upload(self) -> bool:
        """Uploads what changed; returns whether that worked. A failure is tried again later."""
        try:
            self._mirror.upload()
            return True
        except OSError as error:
            self._warn(f"records were not uploaded to {self._mirror.url} ({error.strerror})")
            return False
