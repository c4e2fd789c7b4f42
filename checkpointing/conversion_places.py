"""Where convert.py reads from and writes to: a local directory, a bucket, or the hub."""

import contextlib
import glob
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from absl import logging

from experiment.schema import HUB, OBJECT_STORAGE, RUN_SCHEMES, ConfigError, refuse_remote
from input_pipeline.object_copy import local_copy, local_tokenizer
from input_pipeline.token_cache import cache_directory_of
from pretrained import gguf_model, peft_adapter
from pretrained.hub_model import fetch_model, is_read
from pretrained.source_path import HUB_ADDRESS, require_model_directory
from storage import hub
from storage.hub_upload import require_new, upload
from storage.mirror import checkpoint_directory
from storage.object_store import as_os_errors, filesystem, is_remote, upload_directory

PLACES = (*OBJECT_STORAGE, HUB)


class ConversionTarget(NamedTuple):
    """A local directory to write to, and the name on the hub of what becomes of it, or ""."""

    directory: Path
    repo: str = ""


def refuse_other_places(source: str, target: str, tokenizer: str) -> None:
    """Refuses addresses that none of the flags takes."""
    for flag, path in (("--from", source), ("--to", target), ("--tokenizer", tokenizer)):
        if not HUB_ADDRESS.fullmatch(path):  # require_model_directory has a better message
            refuse_remote(flag, path, PLACES)


def is_run(workdir: str) -> bool:
    """Whether a directory, local or in a bucket, has the checkpoints of a run."""
    if hub.is_hub_address(workdir):
        return False
    try:
        with as_os_errors():
            return checkpoint_directory(workdir, "checkpoints").is_dir()
    except OSError as error:
        raise ConfigError(
            f"--from={workdir} cannot be read ({error.strerror}); check the path, the bucket and "
            "your credentials"
        ) from error


def refuse_missing(source: str) -> None:
    """Refuses a local directory that has no published model, before anything is made."""
    is_elsewhere = hub.is_hub_address(source) or is_remote(source)
    if not (is_elsewhere or gguf_model.is_gguf(source) or peft_adapter.is_adapter(source)):
        require_model_directory(source)


@contextlib.contextmanager
def published_model(source: str) -> Iterator[tuple[Path, str]]:
    """Yields the local path of a published model, and its name for records and errors."""
    if not (hub.is_hub_address(source) or is_remote(source)):
        yield Path(source), Path(source).resolve().name
        return
    if is_remote(source):
        name = source
        cache = cache_directory_of("")
        directory = Path(local_copy("--from", source, cache, is_read, recursive=True))
    else:
        name = str(hub.pinned("--from", source))
        directory = fetch_model("--from", name)
    try:
        yield directory, name
    except ConfigError as error:
        problems = [each.replace(str(directory), name) for each in error.problems]
        raise ConfigError(problems) from error


def local_tokenizer_file(path: str) -> str:
    """The value of --tokenizer with a local path."""
    return local_tokenizer("--tokenizer", path, cache_directory_of(""))


@contextlib.contextmanager
def new_target(target: str, *, is_export: bool) -> Iterator[ConversionTarget]:
    """Yields a temporary directory; on success it becomes `target`, else it is removed."""
    if hub.is_hub_address(target):
        if not is_export:
            raise ConfigError(
                f"--to={target} takes the export of a run; an import makes a run, so give a "
                "directory, or --from=WORKDIR"
            )
        place = require_new("--to", target)
        with tempfile.TemporaryDirectory(prefix="export-") as temporary:
            yield ConversionTarget(Path(temporary), place.repo)
            upload("--to", place, Path(temporary), "Upload of a model by convert.py")
    elif is_remote(target):
        if not is_export:
            refuse_remote("--to", target, RUN_SCHEMES)
        with tempfile.TemporaryDirectory(prefix="convert-") as temporary:
            _refuse_existing_objects_at(target)
            yield ConversionTarget(Path(temporary))
            _upload(Path(temporary), target)
    else:
        with _new_directory(Path(target)) as directory:
            yield ConversionTarget(directory)


def _refuse_existing_objects_at(url: str) -> None:
    try:
        with as_os_errors():
            found = filesystem(url).find(url.rstrip("/"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"--to={url} cannot be read ({error.strerror}); check the bucket and your credentials"
        ) from error
    if found:
        raise ConfigError(f"--to={url} already has objects; choose a new directory, or empty it")


def _upload(directory: Path, url: str) -> None:
    # Checkpoints get the object that marks them as complete in a bucket, after all others.
    for step in directory.glob("checkpoints/*/"):
        (step / "commit_success.txt").write_text("Checkpoint commit was successful")
    try:
        upload_directory(directory, url, last="commit_success.txt")
    except OSError as error:
        raise ConfigError(
            f"--to={url} cannot be written ({error.strerror}); check the bucket and your "
            "credentials, remove what is there, and run this again"
        ) from error


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """Yields a temporary directory; renames it to `target` on success, else removes it."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--to={target} already exists; choose a new directory, or empty it")
    final = Path(os.path.abspath(target))
    temporary = final.with_name(f".{final.name}.new-{os.getpid()}-{platform.node()}")
    try:
        _remove_leftovers(final)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(final)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--to={target} cannot be written ({reason})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(final: Path) -> None:
    """Removes the temporary directories of earlier, killed programs for the same target."""
    for path in final.parent.glob(f".{glob.escape(final.name)}.new-*"):
        # Earlier versions had no host in the name. A program on another host may still run.
        found = re.fullmatch(r"(\d+)(?:-(.*))?", path.name.removeprefix(f".{final.name}.new-"))
        if found and found[2] in (None, platform.node()) and not _is_running(int(found[1])):
            logging.warning("%s is what a killed program left behind: removed", path)
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return process != os.getpid()
