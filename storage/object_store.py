"""Access to gs:// and s3:// through fsspec and etils.epath, as Orbax does it."""

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import fsspec
from etils import epath

from experiment.schema import OBJECT_STORAGE, ConfigError

# As patient as gcsfs, which bridges an outage of half a minute. The other modes do not repeat what
# a server refuses with 429 and no error code of Amazon's.
S3_RETRIES = {"mode": "legacy", "max_attempts": 7}
# Packages whose exceptions are about the network or the store. Most are not OSErrors.
CLIENTS = ("aiobotocore", "aiohttp", "asyncio", "botocore", "gcsfs", "google", "requests", "s3fs")


def is_remote(path: str | PathLike) -> bool:
    """Whether a path is in object storage."""
    scheme, found, _ = os.fspath(path).partition("://")
    return bool(found) and scheme in OBJECT_STORAGE


def remote_path(url: str | PathLike) -> epath.Path:
    """Returns the path of a URL, with pathlib's methods."""
    filesystem(url)
    return epath.Path(os.fspath(url).rstrip("/"))


def filesystem(url: str | PathLike) -> fsspec.AbstractFileSystem:
    """Returns the file system of a URL. Its lists of directories are never stale."""
    scheme = os.fspath(url).partition("://")[0]
    # tensorstore and other machines write to the same directories, so that a cached list is wrong.
    # epath and this function must ask for the same file system, or each would have its own.
    for name in ("gcs", "gs", "s3"):
        fsspec.config.conf.setdefault(name, {})["use_listings_cache"] = False
    if scheme == "gs":
        # It logs each error with a traceback, and then raises it.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        return fsspec.filesystem("gcs", finalize_on_close=True)
    fsspec.config.conf[scheme].setdefault("config_kwargs", {"retries": S3_RETRIES})
    return fsspec.filesystem(scheme)


def sizes_below(directory: epath.Path) -> dict[str, int]:
    """Returns the sizes of all objects below a directory, by their names relative to it."""
    root = os.fspath(directory).partition("://")[2]
    with as_os_errors():
        found = filesystem(directory).find(os.fspath(directory), detail=True)
    # Some tools write an empty object in place of a directory.
    files = {name: entry for name, entry in found.items() if entry["type"] == "file"}
    return {name.removeprefix(f"{root}/"): entry["size"] for name, entry in files.items()}


def read_object(path: epath.Path) -> bytes:
    """Reads an object."""
    with as_os_errors():
        return filesystem(path).cat_file(os.fspath(path))


def write_object(path: epath.Path, data: bytes) -> None:
    """Writes an object, which appears at once and complete."""
    with as_os_errors():
        filesystem(path).pipe_file(os.fspath(path), data)


def read_range(path: epath.Path, start: int, length: int) -> bytes:
    """Reads a part of an object."""
    with as_os_errors():
        return filesystem(path).cat_file(os.fspath(path), start=start, end=start + length)


def move(source: epath.Path, target: epath.Path) -> None:
    """Copies all objects below a directory to another one, and then removes them."""
    files = filesystem(source)
    with as_os_errors():
        # Names in full: gcsfs expands a directory to what need not exist, and its `mv` asks for a
        # way to rename that not every server has, again and again before it copies.
        root = os.fspath(source).partition("://")[2]
        below = sorted(name.removeprefix(root) for name in files.find(os.fspath(source)))
        old, new = ([f"{os.fspath(each)}{name}" for name in below] for each in (source, target))
        files.copy(old, new)
        for each in old:
            files.rm_file(each)


def remove_below(url: str | PathLike) -> None:
    """Removes all objects below a directory."""
    files = filesystem(url)
    with as_os_errors():
        for path in files.find(os.fspath(url)):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                files.rm_file(path)


def upload_directory(directory: Path, url: str, last: str = "") -> None:
    """Copies all files below a local directory to objects below a URL.

    Those named `last` come last: they mark others as complete.
    """
    files = filesystem(url)
    paths = [path for path in directory.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: (path.name == last, path)):
        with as_os_errors():
            name = path.relative_to(directory).as_posix()
            files.put_file(os.fspath(path), f"{url.rstrip('/')}/{name}")


def refuse_unwritable_object(key: str, url: str) -> None:
    """Refuses an object that cannot be written, by writing another beside it. `key`: the flag."""
    probe = f"{url}.writable-{secrets.token_hex(8)}"
    try:
        with as_os_errors():
            filesystem(url).pipe_file(probe, b"-")
            filesystem(url).rm_file(probe)
    except OSError as error:
        raise ConfigError(
            f"{key}={url} cannot be written ({error.strerror or error}); check the bucket and your "
            "credentials"
        ) from error


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Raises what the clients of object stores raise as OSError, with a message of one line."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        is_client = type(error).__module__.split(".")[0] in CLIENTS
        if not (is_client or isinstance(error, OSError | TimeoutError)):
            raise
        text = getattr(error, "strerror", None) or str(error)
        text = " ".join(text.split()) or type(error).__name__
        number, file = getattr(error, "errno", None), getattr(error, "filename", None)
        raise OSError(number or 5, text[:300], file) from error
