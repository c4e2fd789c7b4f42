"""A time limit: how much of it a run has used, over all of its resumptions.

The first process's clock counts. Its share of the limit goes into each step, where all processes
get the same number: the learning rate of the step follows it, and as one of the step's metrics it
tells all of them when the time is up. So none of them waits for another.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from training.processes import is_primary
from training.step import TIME_USED

FILE_NAME = "time_used.json"
RECORDED_EVERY = 5.0  # seconds: what a killed run may have used without a record of it

clock = time.monotonic


class TimeLimit:
    """Leaving the context records the time that was used."""

    def __init__(self, workdir: Path, minutes: float, *, start: int):
        """`minutes` may be 0: no limit. A run that resumes has used what it had at step `start`.

        Time that went into steps which were lost does not count, so that they can be made again.
        """
        self._path, self._limit = workdir / FILE_NAME, 60 * minutes
        self._before, self._at_step = 0.0, {}
        if minutes and start and is_primary():
            self._before, self._at_step = _recorded(self._path, start)
        self._begun: float | None = None
        self._seconds = self._recorded = self._before
        # The share that all processes have agreed on; an evaluation's, of the longest so far; and
        # the share before an evaluation whose length is not known yet.
        self.share = 0.0
        if minutes:
            self.share = float(broadcast_one_to_all(np.float32(self._before / self._limit)))
        self._evaluation, self._before_evaluation = 0.0, None

    def __enter__(self) -> "TimeLimit":
        return self

    def __exit__(self, *exception) -> None:
        if self._begun is None:
            return
        # The last evaluation comes on top: it takes nothing from a limit that is raised later.
        if not self.is_up:
            self._read_clock()
        self._record()

    @property
    def is_up(self) -> bool:
        return bool(self._limit) and self.share >= 1

    @property
    def has_time_to_evaluate(self) -> bool:
        """Whether an evaluation as long as the longest so far would end in time."""
        return not self._limit or self.share + self._evaluation < 1

    def of_step(self, mesh: Mesh) -> jax.Array | None:
        """What the next step is to be told; None without a limit. To be asked once for each.

        The clock starts with the first, so that the compilation counts.
        """
        if not self._limit:
            return None
        self._read_clock()
        if self._seconds >= self._recorded + RECORDED_EVERY:
            self._record()
        share = self._seconds / self._limit if is_primary() else 0.0
        own = np.full(len(mesh.local_devices), share, np.float32)
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        return jax.make_array_from_process_local_data(sharding, own, (mesh.size,))

    def update(self, results: Sequence[tuple[int, Mapping[str, jax.Array]]]) -> None:
        """Reads the share, on which all processes agree, from the metrics of the last step."""
        if not self._limit or not results:
            return
        self.share = float(jax.device_get(results[-1][1][TIME_USED]))
        if self._before_evaluation is not None:
            self._evaluation = max(self._evaluation, self.share - self._before_evaluation)
            self._before_evaluation = None

    def evaluated(self) -> None:
        """An evaluation came after the last step that was noted."""
        self._before_evaluation = self.share

    def saved(self, step: int) -> None:
        """A checkpoint of this step was saved."""
        if self._limit:
            self._at_step[step] = self._seconds / 60
            self._record()

    def _read_clock(self) -> None:
        now = clock()
        self._begun = now if self._begun is None else self._begun
        self._seconds = self._before + now - self._begun

    def _record(self) -> None:
        self._recorded = self._seconds
        if not is_primary():
            return
        temporary = self._path.with_suffix(".json.new")
        with contextlib.suppress(OSError):  # a full disk is for checkpoints to complain of
            record = {"minutes": self._seconds / 60, "at_step": self._at_step}
            temporary.write_text(json.dumps(record) + "\n")
            temporary.replace(self._path)


def _recorded(path: Path, start: int) -> tuple[float, dict[int, float]]:
    """Seconds that were used up to a step, and minutes by step.

    Nothing where the run had no limit so far, or the record is damaged.
    """
    try:
        record = json.loads(path.read_text())
        at_step = record.get("at_step", {}).items()
        at_step = {int(step): float(minutes) for step, minutes in at_step}
        at_step = {step: minutes for step, minutes in at_step.items() if step <= start}
        return 60 * at_step.get(start, float(record["minutes"])), at_step
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0.0, {}
