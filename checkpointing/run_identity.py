"""What makes a run the same run, kept in its checkpoints, to notice records changed by hand.

`model.json` and `config.json` lie beside the checkpoints as plain text. A class list in another
order, say, gives other answers without a word. So each checkpoint has a copy of what may not change
during a run, which its digests protect.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpointing import run_directory
from checkpointing.run_directory import CONFIG, MODEL, PROVENANCE
from experiment.schema import ConfigError
from experiment.untrusted_files import require_regular
from storage.object_store import is_remote

FILE = "run_identity.json"
FILES = (MODEL, CONFIG, PROVENANCE)  # the records that it copies from
RECORDED = ("model.", "task.", *run_directory.DIGESTS)
OF_THE_DATA = ("labels", "text_pairs")  # in model.json, beside the model
OF_A_SOURCE = ("alpha", "step")  # in origins.json; digests of parameters are compared elsewhere
TEACHER = "task.teacher"  # a path, which may move


def write(workdir: Path, checkpoint: Path) -> None:
    """Writes the records of the run into the directory of a checkpoint."""
    found = _identity(workdir)
    if found:
        (checkpoint / FILE).write_text(json.dumps(found) + "\n")


def refuse_changed_config(workdir: Path, checkpoint: Path) -> None:
    """Refuses to resume with another config.json than a checkpoint's run had.

    The other records are written again when a run is resumed, or compared with its parameters.
    """
    _compare(workdir, checkpoint, (CONFIG,))


def refuse_changed(workdir: Path, checkpoint: Path) -> None:
    """Refuses a run whose records differ from those in a checkpoint; older ones have none."""
    _compare(workdir, checkpoint, FILES)


def _compare(workdir: Path, checkpoint: Path, files: Sequence[str]) -> None:
    path = checkpoint / FILE
    if not is_remote(path):
        require_regular(path)
    try:
        then = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):  # missing, or damaged
        return
    if not (isinstance(then, dict) and all(isinstance(each, dict) for each in then.values())):
        return  # damaged: the digests notice that
    now = _identity(workdir, files)
    for file, values in then.items():
        if file not in files:
            continue
        if file not in now:
            raise ConfigError(
                f"{workdir / file} is missing, which the run had when the checkpoint of step "
                f"{checkpoint.name} was saved; restore it"
            )
        for name, was in values.items():
            # Keys that a later version removed are gone from the record, too.
            if name in now.get(file, {}) and now[file][name] != was:
                raise ConfigError(
                    f"{workdir / file} has another value of {name} than when the checkpoint of "
                    f"step {checkpoint.name} was saved: {_short(now[file][name])}, not "
                    f"{_short(was)}; restore it"
                )


def _identity(workdir: Path, files: Sequence[str] = FILES) -> dict[str, dict[str, Any]]:
    """What may not change during a run, by file and name."""
    found = {}
    files = [name for name in files if (workdir / name).exists()]
    if MODEL in files:
        record = run_directory.read_record(workdir / MODEL, "restore it")
        found[MODEL] = {name: record[name] for name in OF_THE_DATA if name in record}
        found[MODEL] |= _unchangeable({"model": record.get("model", {})})
    if CONFIG in files:
        record = run_directory.read_record(workdir / CONFIG, "restore it")
        found[CONFIG] = _unchangeable(record)
    if PROVENANCE in files:
        record = run_directory.read_record(workdir / PROVENANCE, "restore it")
        # The other runs may move, so their paths may change.
        found[PROVENANCE] = {
            f"{name}.{key}": value
            for name, source in record.items()
            if isinstance(source, dict)
            for key, value in source.items()
            if key in OF_A_SOURCE
        }
    return found


def _unchangeable(record: Mapping[str, Any]) -> dict[str, Any]:
    sections = {name: each for name, each in record.items() if isinstance(each, dict)}
    named = {
        f"{name}.{key}": value for name, each in sections.items() for key, value in each.items()
    }
    named |= {name: each for name, each in record.items() if name not in sections}
    return {
        name: value
        for name, value in named.items()
        if name.startswith(RECORDED) and name != TEACHER and run_directory.is_unchangeable(name)
    }


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
