"""Copies of data in object storage, on a local disk.

Sources map files to memory and read them by row, so data in a bucket is copied once. The name of a
copy is a digest of the names and versions of the objects: if they change, the next run makes
another copy.
"""

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from input_pipeline.atomic_directory import make_directory_atomically
from input_pipeline.config import DataConfig
from input_pipeline.token_cache import cache_directory
from storage.object_store import as_os_errors, filesystem, is_remote

WILDCARD = re.compile(r"[*?\[]")


def with_local_path(data: DataConfig) -> DataConfig:
    """Returns the data's config with a local `path`; a path in a bucket is copied first."""
    if not is_remote(data.path):
        return data
    try:
        with as_os_errors():
            path = _copied(data.path.rstrip("/"), cache_directory(data) / "objects")
    except FileNotFoundError as error:
        raise ConfigError(
            f"data.path={data.path} matches no object; check it for a typing error"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"data.path={data.path} cannot be copied to {cache_directory(data)} "
            f"({error.strerror or error}); check the bucket, your credentials and the disk"
        ) from error
    return dataclasses.replace(data, path=path)


def _copied(url: str, cache: Path) -> str:
    """Returns the local path that stands for a URL of an object, a directory or a glob."""
    files = filesystem(url)
    wildcard = WILDCARD.search(url)
    # Names in the copy are relative to the directory before the first wildcard.
    base = url[: wildcard.start()].rsplit("/", 1)[0] if wildcard else url
    if wildcard:
        found = files.glob(url, detail=True)
    elif files.isfile(url):
        base, found = url.rsplit("/", 1)[0], {url.partition("://")[2]: files.info(url)}
    else:
        found = files.find(url, detail=True)
    root = base.partition("://")[2]
    objects = {
        name.removeprefix(f"{root}/"): entry
        for name, entry in sorted(found.items())
        if entry["type"] == "file" and not name.endswith("/")  # which stands for a directory
    }
    if not objects:
        raise FileNotFoundError(url)
    for name in objects:
        if ".." in Path(name).parts:
            raise ConfigError(f"data.path={url} has an object named {name!r}; rename it")

    def download(directory: Path) -> None:
        for name in objects:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{base}/{name}", os.fspath(directory / name))

    identity = [base, {name: _version(entry) for name, entry in objects.items()}]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    if not (cache / key).is_dir():
        make_directory_atomically(cache / key, download)
    return os.fspath(cache / key) + url.removeprefix(base)


def _version(entry: dict[str, Any]) -> list[str]:
    """Identifies the content of an object, by what the store says of it."""
    return [str(entry.get(key, "")) for key in ("size", "md5Hash", "ETag", "generation")]
