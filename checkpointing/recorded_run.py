"""Reads what a run directory holds, for reports: read-only, and tolerant of what is missing.

A run may be going on, may have been killed, or may be older than some of these files. What cannot
be read is left out and named in `RunRecord.problems`.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from experiment.untrusted_files import require_regular
from storage.mirror import checkpoint_directory, open_run_directory, source_of
from storage.object_store import as_os_errors, is_remote, remote_path
from training import run_events
from training.main_metric import main_metric, mode_of

CHECKPOINTS = "checkpoints"  # not imported: the checkpoint manager needs seconds to load
MOST_SAMPLES = 400  # files that are read: the newest
MOST_CHARACTERS = 20_000  # of a file with samples


@dataclasses.dataclass(frozen=True)
class Series:
    """A metric over steps. NaN and infinite values are kept."""

    steps: np.ndarray  # int, ascending
    values: np.ndarray  # float64

    def best(self, mode: str) -> tuple[int, float] | None:
        """(step, value) of the first best value; None if all are NaN or infinite."""
        finite = np.isfinite(self.values)
        if not finite.any():
            return None
        sign = 1 if mode == "max" else -1
        index = int(np.argmax(np.where(finite, sign * self.values, -math.inf)))
        return int(self.steps[index]), float(self.values[index])

    @property
    def last(self) -> tuple[int, float]:
        return int(self.steps[-1]), float(self.values[-1])


@dataclasses.dataclass(frozen=True)
class Sample:
    """A file of samples, written at an evaluation."""

    step: int
    eval_set: str
    text: str


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Everything a report needs to know about one run."""

    workdir: Path
    name: str
    config: Mapping[str, Any]
    model: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Series]
    events: tuple[Mapping[str, Any], ...]
    samples: tuple[Sample, ...]
    evaluations: tuple[Mapping[str, Any], ...]  # of evaluations.jsonl
    details: tuple[Mapping[str, Any], ...]  # of evaluate.py --details, oldest step first
    checkpoints: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def last_step(self) -> int:
        """The newest step that anything is known of."""
        steps = [event["step"] for event in self.events[-1:]]
        steps += [int(series.steps[-1]) for series in self.metrics.values()]
        return max([*steps, *self.checkpoints], default=0)

    @property
    def planned_steps(self) -> int | None:
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def unit(self) -> str:
        """What the run's data is counted in."""
        if _get(self.model, "model", "input") != "patches":
            return "tokens"
        return "examples" if _get(self.model, "model", "input_shape") else "images"

    @property
    def main_metric(self) -> tuple[str, str]:
        """The score that sums up the run, and "min" or "max"; ("", "max") without evaluation."""
        checkpoint = self.config.get("checkpoint")
        checkpoint = checkpoint if isinstance(checkpoint, Mapping) else {}
        wanted = str(checkpoint.get("best_metric") or "")
        metric = main_metric(self.metrics, wanted)
        if metric and metric == wanted and checkpoint.get("best_mode") in ("min", "max"):
            return metric, checkpoint["best_mode"]
        return metric, mode_of(metric)

    @property
    def parameters(self) -> Mapping[str, int]:
        """ "total" and "trainable", of the newest start; {} for older runs."""
        found = [e["parameters"] for e in self.events if isinstance(e.get("parameters"), Mapping)]
        return found[-1] if found else {}

    def progress(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of "seconds", "tokens" or "images" on the way to the newest step.

        They begin at step 0 with 0. Empty if the run recorded none.
        """
        by_step: dict[int, float] = {}
        for event in run_events.surviving_progress(self.events):
            value = event.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                by_step[event["step"]] = value
        if not by_step:
            return np.zeros(0, int), np.zeros(0)
        by_step = {0: 0} | by_step
        steps = np.array(sorted(by_step))
        return steps, np.array([by_step[step] for step in steps], float)

    def at_steps(self, key: str, steps: np.ndarray) -> np.ndarray | None:
        """Seconds, tokens or images at these steps, by linear interpolation; None if unknown."""
        known, values = self.progress(key)
        return np.interp(steps, known, values) if len(known) else None

    def total(self, key: str) -> float | None:
        """Seconds, tokens or images up to the newest step; None if unknown."""
        values = self.progress(key)[1]
        if key == "seconds":  # the last evaluation comes after the last progress
            ends = [e.get("seconds") for e in self.events[-1:] if e["event"] == "end"]
            values = np.append(values, [end for end in ends if isinstance(end, int | float)])
        return float(values.max()) if len(values) else None

    @property
    def status(self) -> str:
        """How the run ended, in a few words; "" if nothing is known of its end."""
        if not self.events:
            return ""
        last = self.events[-1]
        if last["event"] != "end":
            return "no end recorded: it is running, or was killed"
        return f"ended by {last['reason']}" if last.get("reason") else "finished"


def read_run(workdir: str | Path) -> RunRecord:
    """What is known of the run in a directory. Refuses a directory that holds no run."""
    url, workdir = source_of(workdir), open_run_directory("--workdirs", workdir)
    if not workdir.is_dir():
        raise ConfigError(f"--workdirs: {workdir} is not a directory; check it for a typing error")
    problems: list[str] = []
    config = _read_json(workdir / "config.json", problems)
    metrics = _read_metrics(workdir / "metrics.jsonl", problems)
    events = tuple(run_events.read_events(workdir / run_events.NAME))
    if not (config or metrics or events):
        raise ConfigError(
            f"--workdirs: {workdir} holds no run: no config.json, metrics.jsonl or events.jsonl; "
            "give a directory that train.py wrote, its --workdir"
        )
    return RunRecord(
        workdir=remote_path(url) if url else workdir,
        name=workdir.name or str(workdir),
        config=config,
        model=_read_json(workdir / "model.json", problems),
        environment=_read_json(workdir / "environment.json", problems),
        metrics=metrics,
        events=events,
        samples=_read_samples(workdir / "samples", problems),
        evaluations=tuple(_json_lines(workdir / "evaluations.jsonl", problems)),
        details=_read_details(workdir / "evaluations", problems),
        checkpoints=_saved(checkpoint_directory(workdir, CHECKPOINTS)),
        problems=tuple(problems),
    )


def _get(record: Any, *keys: str) -> Any:
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def _read_text(path: Path, problems: list[str]) -> str:
    try:
        return require_regular(path).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except ConfigError as error:
        problems.append(str(error))
        return ""
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror or error})")
        return ""


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    text = _read_text(path, problems)
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no JSON object")
        return {}
    return value


def _json_lines(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file with one on each line. The last line may be incomplete."""
    lines = _read_text(path, problems).splitlines()
    bad = 0
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield record
        elif number < len(lines):
            bad += 1
    if bad:
        problems.append(f"{path.name}: {bad} damaged lines are left out")


def _read_metrics(path: Path, problems: list[str]) -> dict[str, Series]:
    """All metrics by name. Of two values for one step the later counts."""
    found: dict[str, dict[int, float]] = {}
    for record in _json_lines(path, problems):
        step = record.pop("step", None)
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        for name, value in record.items():
            number = _number(value)
            if number is not None:
                found.setdefault(name, {})[step] = number
    series = {}
    for name, values in found.items():
        steps = np.array(sorted(values))
        series[name] = Series(steps, np.array([values[step] for step in steps], float))
    return series


def _number(value: Any) -> float | None:
    """A number, or "nan", "inf" and "-inf", which is how metrics.jsonl writes them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _read_samples(directory: Path, problems: list[str]) -> tuple[Sample, ...]:
    named = []
    for path in _listed(directory):
        if match := re.fullmatch(r"(\d+)_(.+)\.txt", path.name):
            named.append((int(match[1]), match[2], path))
    named.sort(key=lambda each: each[:2])
    return tuple(
        Sample(step, eval_set, _read_text(path, problems)[:MOST_CHARACTERS])
        for step, eval_set, path in named[-MOST_SAMPLES:]
    )


def _read_details(directory: Path, problems: list[str]) -> tuple[dict[str, Any], ...]:
    """Details of the newest step for each eval set."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(_listed(directory)):
        if path.suffix != ".json":
            continue
        record = _read_json(path, problems)
        if isinstance(record.get("step"), int) and isinstance(record.get("eval_set"), str):
            before = newest.get(record["eval_set"])
            if before is None or before["step"] <= record["step"]:
                newest[record["eval_set"]] = record
    return tuple(newest.values())


def _saved(directory: Path) -> tuple[int, ...]:
    paths = [path for path in _listed(directory) if path.name.isdecimal()]
    if is_remote(directory):  # there, every checkpoint has its name from the start
        try:
            with as_os_errors():
                paths = [path for path in paths if (path / "commit_success.txt").exists()]
        except OSError:
            return ()
    return tuple(sorted(int(path.name) for path in paths))


def _listed(directory: Path) -> list[Path]:
    try:
        with as_os_errors():
            return list(directory.iterdir())
    except OSError:
        return []
