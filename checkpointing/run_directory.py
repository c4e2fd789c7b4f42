"""The records in a run's directory, and whether a run may continue there."""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from experiment.schema import ConfigError, path_problems, refuse_remote
from input_pipeline.config import FORMER_FIT
from model.config import TransformerConfig
from training.processes import is_primary, refuse_unshared

CONFIG, MODEL, ORIGINS = "config.json", "model.json", "origins.json"
# What the record of a config holds beside the config.
DIGESTS = ("data_digest", "tokenizer_digest")
# A run that resumes with other values here would not be the same run.
FIXED = (
    "model", "data", "task", "tokenizer_digest", "data_digest", "optimizer.name",
    "optimizer.rounding", "finetune", "seed", "init_from", "failure.spike_window",
)  # fmt: skip
# Keys of older runs that mean nothing any more.
RETIRED = ("checkpoint.wait",)
# Defaults that are others today. A run that began with these, or before there was such a key, goes
# on with them.
FORMER_DEFAULTS = {
    "model.sinusoidal_scale": 1.0,
    "model.attention_redraw": 1000,
    "data.image_fit": FORMER_FIT,
}
# Where these are 0 the optimizer's state lacks an average or a momentum: they may change, but be
# neither switched on nor off under way.
SWITCHES = ("optimizer.ema_decay", "optimizer.beta1")
# How it is computed may change under way: the numbers mean the same. So may where the data
# and the tokenizer come from: their digests tell whether they are still the same.
FREE = (
    "model.remat", "model.unroll", "data.path", "data.tokenizer", "data.tokenizer_size",
    "data.lowercase", "data.cache_dir", "data.max_bad_records", "data.prefetch", "data.workers",
    "finetune.layer_decay", "finetune.head_scale",
)  # fmt: skip


def prepare(workdir: str | Path) -> Path:
    """The directory, made if need be; refuses one that cannot be written.

    Of several processes, all must come here: it is also refused if they do not share it.
    """
    refuse_remote("--workdir", workdir)
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


@contextlib.contextmanager
def lock(workdir: Path) -> Iterator[None]:
    """One run at a time: refuses a directory in which another is at work.

    The system gives the lock back when its holder ends, however that comes about.
    """
    if not is_primary():  # it holds the lock for all of its job
        yield
        return
    with (workdir / "lock").open("a+") as file:
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
        yield


def record_config(
    workdir: Path,
    record: Mapping[str, Any],
    *,
    resuming: bool,
    defaults: Mapping[str, Any] | None = None,
) -> list[str]:
    """Writes config.json; returns what changed since the run began, or refuses the change.

    `defaults` are today's, for keys that are younger than the run.
    """
    path = workdir / CONFIG
    # Through JSON and back, so that tuples compare equal to the lists they are stored as.
    new = json.loads(json.dumps(record))
    changes = []
    if resuming and path.exists():
        old = with_defaults(json.loads(path.read_text()), json.loads(json.dumps(defaults or {})))
        changes = list(differences(old, new))
        refused = [
            f"{name}: {was} -> {now}"
            for name, was, now in changes
            if _is_fixed(name) or (name in SWITCHES and bool(was) != bool(now))
        ]
        if refused:
            raise ConfigError(
                f"{workdir} holds a run with another config ({'; '.join(refused)}); "
                "restore these values or choose another --workdir"
            )
    _write_json(path, new)
    return [f"{name}: {was} -> {now}" for name, was, now in changes]


def read_config(workdir: Path) -> dict[str, Any]:
    """The config of the run that a directory holds."""
    record = _read_json(
        workdir / CONFIG, f"{workdir} is not a run's directory; check --workdir for a typing error"
    )
    config = {key: _with_tuples(value) for key, value in record.items() if key not in DIGESTS}
    return _without_remote_caches(config)


def _without_remote_caches(config: dict[str, Any]) -> dict[str, Any]:
    """Paths with a scheme once became local directories; runs with a cache in one still load.

    What was in the cache can be made again elsewhere.
    """
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
    """A recorded config in which keys that are younger than the run have their defaults.

    They are today's, but for those that would change what the run computes.
    """
    config = dict(defaults)
    for name, former in FORMER_DEFAULTS.items():
        section, key = name.split(".")
        if section in config:
            config[section] = {**config[section], key: former}
    for key, value in _without_retired(record).items():
        is_section = isinstance(value, Mapping) and isinstance(config.get(key), Mapping)
        config[key] = {**config[key], **value} if is_section else value
    return config


def as_begun(
    workdir: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The config for resuming a run that began when some defaults were others, and a line on it.

    The same command would otherwise be taken for another run.
    """
    config, kept = dict(config), []
    if not (workdir / CONFIG).exists():
        return config, ""
    recorded = with_defaults(read_config(workdir), defaults)
    for name, former in FORMER_DEFAULTS.items():
        section, key = name.split(".")
        is_default = config[section][key] == defaults[section][key]
        if is_default and recorded[section][key] == former != config[section][key]:
            config[section] = {**config[section], key: former}
            kept.append(f"{name}={former}")
    return config, f"as when the run began: {', '.join(kept)}" if kept else ""


def model_with_defaults(record: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a recorded model alone."""
    return with_defaults({"model": record}, {"model": defaults})["model"]


def record_model(workdir: Path, model: TransformerConfig, labels: Sequence[str]) -> None:
    """What cannot be known without the data: the model's sizes, and the names of the classes."""
    _write_json(workdir / MODEL, {"model": dataclasses.asdict(model), "labels": list(labels)})


def read_model(workdir: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What `record_model` wrote."""
    record = _read_json(
        workdir / MODEL, f"run train.py with --workdir={workdir} once more, which writes it"
    )
    return record["model"], tuple(record["labels"])


def record_origins(workdir: Path, origins: Mapping[str, Any]) -> None:
    """Which parameters of which other runs this one reads whenever it is resumed or used."""
    if origins:
        _write_json(workdir / ORIGINS, origins)
    else:  # one that a run left here that never came to its first checkpoint
        if is_primary():
            (workdir / ORIGINS).unlink(missing_ok=True)


def read_origins(workdir: Path) -> dict[str, Any]:
    """What `record_origins` wrote; nothing, if the run needs no other."""
    path = workdir / ORIGINS
    return _read_json(path, "restore it, or start again elsewhere") if path.exists() else {}


def refuse_other_tokenizer(workdir: Path, tokenizer_digest: str) -> None:
    """Parameters of a run mean nothing to ids that another tokenizer gives."""
    path = workdir / CONFIG
    if not path.exists():
        return
    theirs = json.loads(path.read_text())
    if tokenizer_digest and theirs.get("tokenizer_digest", "") not in ("", tokenizer_digest):
        # A model that was converted has its tokenizer beside it, whatever its config says.
        has_record = (workdir / "tokenizer_roles.json").exists()
        is_byte = theirs["data"]["tokenizer"] == "byte" and not has_record
        raise ConfigError(
            f"init_from: {workdir} was trained with another tokenizer; to use that one, set "
            f"data.tokenizer={'byte' if is_byte else workdir / 'tokenizer.json'}; to keep the rows "
            "of tokens that both have, set finetune.resize_vocabulary=True"
        )


def record_environment(workdir: Path, data: Mapping[str, Any]) -> None:
    """What a person needs to know to run this again."""
    packages = (
        "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sacrebleu",
    )  # fmt: skip
    _write_json(
        workdir / "environment.json",
        {
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in packages},
            "devices": [device.device_kind for device in jax.devices()],
            "processes": jax.process_count(),
            "data": dict(data),
        },
    )


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no valid JSON"
        raise ConfigError(f"{path} cannot be read ({reason}); {remedy}") from error


def _with_tuples(value: Any) -> Any:
    """JSON has lists for what is a tuple in a config."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _write_json(path: Path, value: Any) -> None:
    """Whole or not at all; one process writes for all."""
    if not is_primary():
        return
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, old value, new value) of each key that differs, by its dotted name."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield path, old, new
        return
    for key in sorted(old.keys() | new.keys()):
        name = f"{path}.{key}" if path else key
        yield from differences(old.get(key), new.get(key), name)


def _is_fixed(name: str) -> bool:
    within = lambda keys: any(name == key or name.startswith(f"{key}.") for key in keys)  # noqa: E731
    return within(FIXED) and not within(FREE)
