"""Copies of data and tokenizers in object storage or on the hub, on a local disk.

Sources map files to memory and read them by row, so data in a bucket is copied once. The name of a
copy is a digest of the names and versions of the objects: if they change, the next run makes
another copy.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from input_pipeline.atomic_directory import make_directory_atomically
from input_pipeline.config import DataConfig
from input_pipeline.tokenizers.hub_tokenizer import fetch_tokenizer, is_tokenizer_file
from input_pipeline.tokenizers.subword import ROLES_FILE_NAME
from storage.hub import is_hub_address
from storage.object_store import as_os_errors, filesystem, is_remote

COPIES = "objects"  # the directory in the cache
WILDCARD = re.compile(r"[*?\[]")


def with_local_path(data: DataConfig, cache: Path) -> DataConfig:
    """Returns the data's config with a local `path`; a path in a bucket is copied first."""
    if not is_remote(data.path):
        return data
    return dataclasses.replace(data, path=local_copy("data.path", data.path, cache))


def local_tokenizer(key: str, path: str, cache: Path) -> str:
    """Returns the local path of a tokenizer; one on the hub or in a bucket is copied first."""
    if is_hub_address(path):
        return os.fspath(fetch_tokenizer(key, path))
    if not is_remote(path):
        return path
    # A run's directory has checkpoints too, which are not needed.
    directory, _, name = path.rstrip("/").rpartition("/")
    if "." not in name:
        return local_copy(key, path, cache, _is_of_tokenizer, recursive=False)

    def wanted(each: str) -> bool:
        return each == name or _is_of_tokenizer(each)

    copy = local_copy(key, directory, cache, wanted, recursive=False)
    if not Path(copy, name).exists():
        raise ConfigError(f"{key}={path} matches no object; check it for a typing error")
    return f"{copy}/{name}"


def _is_of_tokenizer(name: str) -> bool:
    return is_tokenizer_file(name) or name == ROLES_FILE_NAME


def local_copy(
    key: str,
    url: str,
    cache: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    *,
    recursive: bool = True,
) -> str:
    """Returns the local path that stands for a URL of an object, a directory or a glob.

    `key` is the flag or config key, for errors. Of a directory, only objects are copied whose name
    relative to it `wanted` accepts, and without `recursive` only those that are not deeper.
    """
    try:
        with as_os_errors():
            return _copied(key, url.rstrip("/"), cache / COPIES, wanted, recursive)
    except FileNotFoundError as error:
        raise ConfigError(f"{key}={url} matches no object; check it for a typing error") from error
    except OSError as error:
        raise ConfigError(
            f"{key}={url} cannot be copied to {cache} "
            f"({error.strerror or error}); check the bucket, your credentials and the disk"
        ) from error


def _copied(key: str, url: str, cache: Path, wanted: Callable[[str], bool], recursive: bool) -> str:
    files = filesystem(url)
    wildcard = WILDCARD.search(url)
    # Names in the copy are relative to the directory before the first wildcard.
    base = url[: wildcard.start()].rsplit("/", 1)[0] if wildcard else url
    if wildcard:
        found = files.glob(url, detail=True)
    elif files.isfile(url):
        base, found = url.rsplit("/", 1)[0], {url.partition("://")[2]: files.info(url)}
    else:
        found = files.find(url, maxdepth=None if recursive else 1, detail=True)
    root = base.partition("://")[2]
    objects = {
        name.removeprefix(f"{root}/"): entry
        for name, entry in sorted(found.items())
        if entry["type"] == "file" and not name.endswith("/")  # which stands for a directory
    }
    if base == url:
        objects = {name: entry for name, entry in objects.items() if wanted(name)}
    if not objects:
        raise FileNotFoundError(url)
    for name in objects:
        if ".." in Path(name).parts:
            raise ConfigError(f"{key}={url} has an object named {name!r}; rename it")

    def download(directory: Path) -> None:
        for name in objects:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{base}/{name}", os.fspath(directory / name))

    identity = [base, {name: _version(entry) for name, entry in objects.items()}]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    if not (cache / digest).is_dir():
        make_directory_atomically(cache / digest, download)
    return os.fspath(cache / digest) + url.removeprefix(base)


def _version(entry: dict[str, Any]) -> list[str]:
    """Identifies the content of an object, by what the store says of it."""
    return [str(entry.get(key, "")) for key in ("size", "md5Hash", "ETag", "generation")]
