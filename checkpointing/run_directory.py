"""The files of a run directory besides checkpoints, and whether a run may continue there."""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax

from experiment.former_keys import with_current_keys
from experiment.schema import RUN_SCHEMES, ConfigError, path_problems, refuse_remote
from experiment.untrusted_files import require_regular
from input_pipeline.config import FORMER_FIT, FORMER_UPRIGHT
from model.config import TransformerConfig
from storage.lease import Lease
from storage.mirror import Mirror, Uploader, open_run_directory, source_of
from storage.object_store import as_os_errors, is_remote, remote_path
from training.exits import SaveFailedError
from training.processes import is_primary, refuse_unshared, write_json

CONFIG, MODEL, PROVENANCE = "config.json", "model.json", "origins.json"
# Entries of config.json besides the config.
DIGESTS = ("data_digest", "tokenizer_digest")
# Keys that a resumed run may not change.
UNCHANGEABLE_ON_RESUME = (
    "model", "data", "task", "tokenizer_digest", "data_digest", "optimizer.name",
    "optimizer.rounding", "finetune", "prune", "seed", "init_from", "failure.spike_window",
)  # fmt: skip
# Keys of older runs that no longer exist.
RETIRED = ("checkpoint.wait",)
# Former defaults. A run that began with them, or before the key existed, keeps them.
FORMER_DEFAULTS = {
    "model.sinusoidal_scale": 1.0,
    "model.attention_redraw": 1000,
    "data.image_fit": FORMER_FIT,
    "data.image_upright": FORMER_UPRIGHT,
}
# Keys that may change, but not from or to 0: that adds or removes a part of the optimizer's state.
SWITCHES = ("optimizer.ema_decay", "optimizer.beta1")
# Exceptions: how things are computed, and where data and tokenizer come from, whose digests show
# whether they are still the same.
CHANGEABLE_ON_RESUME = (
    "model.remat", "model.unroll", "data.path", "data.tokenizer", "data.tokenizer_size",
    "data.lowercase", "data.cache_dir", "data.verify_cache", "data.max_bad_records",
    "data.prefetch", "data.workers",
    "finetune.layer_decay", "finetune.head_scale",
)  # fmt: skip


def prepare(workdir: str | Path) -> Path:
    """Creates the directory if necessary; refuses one that is not writable or not shared.

    All processes of a job must call it. Returns the directory; of a run in a bucket, a local copy
    of its records.
    """
    refuse_remote("--workdir", workdir, RUN_SCHEMES)
    if is_remote(workdir):
        return _prepare_remote(os.fspath(workdir).rstrip("/"))
    workdir, problem = Path(workdir), ""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        problem = (
            f"workdir {workdir} cannot be written ({error.strerror}); choose another --workdir"
        )
    refuse_unshared(workdir, problem)
    if problem:
        raise ConfigError(problem)
    return workdir


def _prepare_remote(url: str) -> Path:
    problem, probe = "", remote_path(f"{url}/.writable-{secrets.token_hex(8)}")
    try:
        with as_os_errors():
            probe.write_text("")
            probe.unlink()
    except OSError as error:
        reason = "there is no such bucket" if isinstance(error, FileNotFoundError) else error
        reason = getattr(reason, "strerror", None) or reason
        problem = (
            f"--workdir={url} cannot be written ({reason}); check the bucket, your credentials and "
            "the network, or choose another --workdir"
        )
    refuse_unshared(remote_path(url), problem)
    if problem:
        raise ConfigError(problem)
    return open_run_directory("--workdir", url)


@contextlib.contextmanager
def lock(workdir: Path) -> Iterator[Callable[[], None]]:
    """Locks the directory; refuses one that another run has locked.

    The operating system releases the lock when the process ends, however it ends. In a bucket, a
    lease takes its place, and the records are uploaded within this context. Yields a function to
    call before a checkpoint is committed: then the bucket has all records up to that step.
    """
    if url := source_of(workdir):
        with contextlib.ExitStack() as stack:
            try:
                lease = stack.enter_context(Lease(url, _warn)) if is_primary() else None
                mirror = Mirror(url)
                mirror.download()  # another run may have ended since
            except OSError as error:
                raise ConfigError(
                    f"--workdir={url} cannot be locked ({error.strerror or error}); check your "
                    "credentials and the network, and run the same command again"
                ) from error
            uploader = stack.enter_context(Uploader(mirror, _warn))

            def before_commit() -> None:
                if lease is not None:
                    lease.confirm()
                uploader.upload()

            yield before_commit
        if not uploader.is_complete:
            raise SaveFailedError(
                f"the last records could not be uploaded to {url}; its checkpoints are complete: "
                "run the same command again"
            )
        return
    if not is_primary():  # the primary process holds the lock for the whole job
        yield _nothing
        return
    with _opened_lock(workdir) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise ConfigError(
                f"{workdir} is in use by another run ({file.read().strip() or 'unknown'}); wait "
                "for its end, or choose another --workdir"
            ) from error
        file.truncate(0)
        print(f"process {os.getpid()} on {platform.node()}", file=file, flush=True)
        yield _nothing


def _opened_lock(workdir: Path) -> TextIO:
    path = workdir / "lock"
    try:
        return path.open("a+")
    except PermissionError as error:
        owner = f"user {path.owner()}" if path.exists() else "another user"
        raise ConfigError(
            f"{path} cannot be opened ({error.strerror}): it belongs to {owner}; choose another "
            "--workdir, or continue the run as that user"
        ) from error


def _nothing() -> None:
    """Before a commit on a local disk there is nothing to do."""


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def record_config(
    workdir: Path,
    record: Mapping[str, Any],
    *,
    resuming: bool,
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """Writes config.json; returns the changes since the run began, or refuses them.

    `defaults` are for keys that are newer than the run.
    """
    path = workdir / CONFIG
    # Through JSON and back, so that tuples compare equal to the lists they are stored as.
    new = with_current_keys(json.loads(json.dumps(record)))
    changes = []
    if resuming and path.exists():
        old = _read_config_record(workdir, "restore it, or choose another --workdir")
        old = with_defaults(old, json.loads(json.dumps(defaults or {})))
        changes = list(differences(old, new))
        refused = [
            f"{name}: {was} -> {now}"
            for name, was, now in changes
            if is_unchangeable(name) or (name in SWITCHES and bool(was) != bool(now))
        ]
        if refused:
            raise ConfigError(
                f"{workdir} holds a run with another config ({'; '.join(refused)}); "
                "restore these values or choose another --workdir"
            )
    write_json(path, new)
    return [f"{name}: {was} -> {now}" for name, was, now in changes]


def read_config(workdir: Path) -> dict[str, Any]:
    """Returns the config of the run in a directory."""
    record = _read_config_record(
        workdir, f"{workdir} is not a run's directory; check --workdir for a typing error"
    )
    config = {key: _with_tuples(value) for key, value in record.items() if key not in DIGESTS}
    return _without_remote_caches(config)


def _read_config_record(workdir: Path, remedy: str) -> dict[str, Any]:
    record = read_record(workdir / CONFIG, remedy, "model", "data", "task")
    for name in ("model", "data", "task"):
        if not isinstance(record[name], dict):
            raise ConfigError(f"{workdir / CONFIG}: {name} is not an object; {remedy}")
    return record


def _without_remote_caches(config: dict[str, Any]) -> dict[str, Any]:
    """Removes remote cache paths (gs://...), which older runs may have: caches can be rebuilt."""
    for section, key in ((config, "compilation_cache"), (config.get("data"), "cache_dir")):
        path = section.get(key) if isinstance(section, dict) else None
        if isinstance(path, str) and any(path_problems(key, path)):
            section[key] = ""
    return config


def _without_retired(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in section.items() if f"{name}.{key}" not in RETIRED}
        if isinstance(section, Mapping)
        else section
        for name, section in record.items()
    }


def with_defaults(record: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recorded config with defaults for keys that are newer than the run.

    If today's default would change the run's computation, the former default is used.
    """
    config = dict(defaults)
    for name, former in FORMER_DEFAULTS.items():
        section, key = name.split(".")
        if section in config:
            config[section] = {**config[section], key: former}
    for key, value in with_current_keys(_without_retired(record)).items():
        is_section = isinstance(value, Mapping) and isinstance(config.get(key), Mapping)
        config[key] = {**config[key], **value} if is_section else value
    return config


def as_begun(
    workdir: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Returns the config with the former defaults that a resumed run began with, and a log line.

    Without them, the same command would look like another run.
    """
    config, restored = dict(config), []
    if not (workdir / CONFIG).exists():
        raise ConfigError(
            f"{workdir} has checkpoints but no {CONFIG}, so nothing shows whether this is the same "
            f"run; restore {CONFIG}, or choose another --workdir"
        )
    recorded = with_defaults(read_config(workdir), defaults)
    for name, former in FORMER_DEFAULTS.items():
        section, key = name.split(".")
        if not (isinstance(config.get(section), Mapping) and key in config[section]):
            continue  # the schema refuses it
        is_default = config[section][key] == defaults[section][key]
        if is_default and recorded[section][key] == former != config[section][key]:
            config[section] = {**config[section], key: former}
            restored.append(f"{name}={former}")
    return config, f"as when the run began: {', '.join(restored)}" if restored else ""


def model_with_defaults(record: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Applies `with_defaults` to the model's section only."""
    return with_defaults({"model": record}, {"model": defaults})["model"]


def record_model(
    workdir: Path,
    model: TransformerConfig,
    labels: Sequence[str],
    text_pairs: bool | None = None,
) -> None:
    """Writes what depends on the data: the model's sizes, and the names of the classes.

    `text_pairs` says whether the examples are pairs of texts; None: unknown.
    """
    record = {"model": dataclasses.asdict(model), "labels": list(labels)}
    write_json(workdir / MODEL, {**record, "text_pairs": text_pairs})


def read_model(workdir: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the model and the labels that `record_model` wrote."""
    record = _read_model_record(workdir)
    return record["model"], tuple(record["labels"])


def read_text_pairs(workdir: Path) -> bool | None:
    """Whether the model was trained on pairs of texts; None: unknown."""
    return _read_model_record(workdir).get("text_pairs")


def _read_model_record(workdir: Path) -> dict[str, Any]:
    remedy = f"run train.py with --workdir={workdir} again to write it"
    record = read_record(workdir / MODEL, remedy, "model", "labels")
    if not isinstance(record["model"], dict) or not isinstance(record["labels"], list):
        raise ConfigError(f"{workdir / MODEL} is not a record of a run; {remedy}")
    return record


def record_provenance(workdir: Path, provenance: Mapping[str, Any]) -> None:
    """Writes which parameters of other runs are needed to resume or use this run."""
    if provenance:
        write_json(workdir / PROVENANCE, provenance)
    elif is_primary():  # a run that ended before its first checkpoint may have left one
        (workdir / PROVENANCE).unlink(missing_ok=True)


def read_provenance(workdir: Path) -> dict[str, Any]:
    """Returns what `record_provenance` wrote; {} if the run needs no other run."""
    path = workdir / PROVENANCE
    return read_record(path, "restore it, or start again elsewhere") if path.exists() else {}


def has_tokenizer(workdir: Path, tokenizer_digest: str) -> bool:
    """Whether the run in a directory has this tokenizer."""
    path = workdir / CONFIG
    theirs = read_record(path, "restore it") if path.exists() else {}
    return bool(tokenizer_digest) and theirs.get("tokenizer_digest") == tokenizer_digest


def refuse_other_tokenizer(workdir: Path, tokenizer_digest: str) -> None:
    """Refuses to start from a run that was trained with another tokenizer."""
    path = workdir / CONFIG
    if not path.exists():
        return
    theirs = read_record(path, "restore it, or choose another init_from")
    if tokenizer_digest and theirs.get("tokenizer_digest", "") not in ("", tokenizer_digest):
        # A converted model has its tokenizer in the directory, whatever its config says.
        has_record = (workdir / "tokenizer_roles.json").exists()
        is_byte = theirs["data"]["tokenizer"] == "byte" and not has_record
        raise ConfigError(
            f"init_from: {workdir} was trained with another tokenizer; to use that one, set "
            f"data.tokenizer={'byte' if is_byte else workdir / 'tokenizer.json'}; to keep the rows "
            "of tokens that both have, set finetune.resize_vocabulary=True"
        )


def record_environment(workdir: Path, data: Mapping[str, Any]) -> None:
    """Writes versions, devices and data sizes, which help to repeat the run."""
    packages = (
        "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sacrebleu",
    )  # fmt: skip
    write_json(
        workdir / "environment.json",
        {
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in packages},
            "devices": [device.device_kind for device in jax.devices()],
            "processes": jax.process_count(),
            "data": dict(data),
        },
    )


def read_record(path: Path, remedy: str, *needed: str) -> dict[str, Any]:
    """Returns a JSON object with the keys `needed`; raises ConfigError, which names the file."""
    try:
        record = json.loads(require_regular(path).read_text())
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid JSON"
        raise ConfigError(f"{path} cannot be read ({reason}); {remedy}") from error
    if not isinstance(record, dict) or not all(key in record for key in needed):
        what = f"an object with {' and '.join(needed)}" if needed else "an object"
        raise ConfigError(f"{path} is not a record of a run: it is not {what}; {remedy}")
    return record


def _with_tuples(value: Any) -> Any:
    """Returns the value with tuples in place of lists, because JSON stores tuples as lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (dotted name, old value, new value) of each key that differs."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield path, old, new
        return
    for key in sorted(old.keys() | new.keys()):
        name = f"{path}.{key}" if path else key
        yield from differences(old.get(key), new.get(key), name)


def is_unchangeable(name: str) -> bool:
    """Whether a resumed run must have the same value of a key, given by its dotted name."""
    within = lambda keys: any(name == key or name.startswith(f"{key}.") for key in keys)  # noqa: E731
    return within(UNCHANGEABLE_ON_RESUME) and not within(CHANGEABLE_ON_RESUME)
