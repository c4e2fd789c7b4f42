"""The history of a run: starts, progress, skipped steps, rollbacks, ends.

events.jsonl is only appended to, over all resumptions, so it also tells of steps that were lost or
rolled back, which metrics.jsonl forgets. Nothing that a run computes depends on it.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.metric_writers import json_line
from training.processes import is_primary

NAME = "events.jsonl"
NAMED_EXAMPLES = 8  # of a failed step, in its message; failures.jsonl has all of them

clock = time.monotonic


class EventLog:
    """Appends to events.jsonl on the primary process. Its context is the run's training."""

    def __init__(
        self,
        workdir: Path,
        unit: str,
        start: int,
        log: Callable[[str], None],
        parameters: Mapping[str, int],
    ):
        """`unit` is what the data is counted in: "tokens", "images" or "examples".

        A run that resumes at step `start` counts on from what it had recorded there.
        """
        self._path, self._unit, self._log = workdir / NAME, unit, log
        self._is_primary, self._failed = is_primary(), False
        self._step, self._parameters = start, dict(parameters)
        self._before, self._amounts = 0.0, {0: 0}
        if start and self._is_primary:
            self._before, self._amounts = _recorded(self._path, unit, start)
        self._amount = self._amounts.get(start)  # None: unknown, as in a run that is older
        self._recorded_step, self._begun = start, clock()

    def __enter__(self) -> "EventLog":
        self._begun = clock()
        self._end_last_line()
        self._write("start", self._step, parameters=self._parameters)
        return self

    def __exit__(self, kind, error, traceback) -> None:
        reason = {"reason": f"{kind.__name__}: {error}".rstrip(": ")} if kind else {}
        self._write("end", self._step, seconds=self._seconds(), **reason)

    def count(self, amount: int) -> None:
        """Notes that the next step was dispatched, with this number of tokens or images."""
        self._step += 1
        if self._amount is not None:
            self._amount += int(amount)  # NumPy's integers are no JSON
            self._amounts[self._step] = self._amount

    def progress(self, step: int) -> None:
        """Records time, and tokens or images, up to a step. Once per step."""
        if step == self._recorded_step:
            return
        self._recorded_step = step
        amount = {self._unit: self._amounts[step]} if step in self._amounts else {}
        self._write("progress", step, seconds=self._seconds(), **amount)

    def skipped(self, step: int, loss: float) -> None:
        self._write("skipped", step, loss=loss)

    def rolled_back(self, step: int, to: int) -> None:
        """Notes that the run goes back from a step to an earlier one."""
        self._write("rollback", step, to=to)
        self._step = self._recorded_step = to
        self._amount = self._amounts.get(to)
        self._amounts = {each: n for each, n in self._amounts.items() if each <= to}

    def evaluation_failed(self, step: int, error: Exception) -> None:
        self._write("evaluation_failed", step, reason=f"{type(error).__name__}: {error}")

    def _end_last_line(self) -> None:
        """Ends a line that a crash cut off, so that the next event has a line of its own."""
        with contextlib.suppress(OSError):
            if self._is_primary and not self._path.read_bytes().endswith(b"\n"):
                with self._path.open("a") as file:
                    file.write("\n")

    def _seconds(self) -> float:
        return round(self._before + clock() - self._begun, 3)

    def _write(self, event: str, step: int, **facts: Any) -> None:
        if not self._is_primary:
            return
        record = {"event": event, "step": step, "time": round(time.time(), 3), **facts}
        try:
            with self._path.open("a") as file:
                file.write(json_line(record))
            self._failed = False
        except OSError as error:  # a full disk ends a run only if a checkpoint does not fit
            if not self._failed:
                self._log(f"{NAME}: {event} at step {step} is not recorded ({error})")
            self._failed = True


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events that are whole, in the order in which they happened."""
    found = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            record = json.loads(line)
            # A line that a crash cut off may stand before the one that follows it.
            if isinstance(record["event"], str) and isinstance(record["step"], int):
                found.append(record)
        except (ValueError, LookupError, TypeError):
            continue
    return found


def surviving_progress(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The progress on the way to the newest step, without steps that were lost or rolled back."""
    surviving: list[Mapping[str, Any]] = []
    for event in events:
        match event["event"]:
            case "start":
                surviving = [each for each in surviving if each["step"] <= event["step"]]
            case "rollback":
                to = event.get("to", 0)
                surviving = [each for each in surviving if each["step"] <= to]
            case "progress":
                surviving.append(event)
    return surviving


def _recorded(path: Path, unit: str, start: int) -> tuple[float, dict[int, int]]:
    """Seconds up to step `start`, and tokens or images by step."""
    steps = [each for each in surviving_progress(read_events(path)) if each["step"] <= start]
    try:
        seconds = float(steps[-1]["seconds"]) if steps else 0.0
        return seconds, {0: 0} | {each["step"]: int(each[unit]) for each in steps if unit in each}
    except (ValueError, LookupError, TypeError):
        return 0.0, {}


def record_examples(
    workdir: Path, step: int, loss: float, ids: Sequence[str], process: int | None
) -> str:
    """Writes the example ids of a failed step to failures.jsonl; returns some in words.

    `process` is the number of this process, if there are several.
    """
    name = "failures.jsonl" if process is None else f"failures-{process}.jsonl"
    record = {"step": step, "loss": str(loss), "examples": list(ids)}
    with (workdir / name).open("a") as file:
        file.write(json.dumps(record) + "\n")
    more = f" and {len(ids) - NAMED_EXAMPLES} more in {name}" if ids[NAMED_EXAMPLES:] else ""
    return f"from the examples {', '.join(ids[:NAMED_EXAMPLES])}{more}"
