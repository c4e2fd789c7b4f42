"""The time limit of a run, over all of its resumptions.

The first process's clock counts. The used share of the limit is an input of each step. The step
computes its learning rate from it and returns it as a metric, so all processes see the same share
without waiting for each other.
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

from training.mesh import put_local
from training.processes import is_primary, write_json
from training.step import TIME_USED

FILE_NAME = "time_used.json"
RECORDED_EVERY = 5.0  # seconds; a killed run loses at most this much of the record

clock = time.monotonic


class TimeLimit:
    """Counts the used time. Leaving the context records it."""

    def __init__(self, workdir: Path, minutes: float, *, start: int):
        """0 `minutes` means no limit. A resumed run starts with the time it had used at `start`.

        Time spent on lost steps does not count, because the run repeats them.
        """
        self._path, self._limit = workdir / FILE_NAME, 60 * minutes
        self._before, self._at_step = 0.0, {}
        if minutes and start and is_primary():
            self._before, self._at_step = _recorded(self._path, start)
        self._begun: float | None = None
        self._seconds = self._recorded = self._before
        self.share = 0.0  # used, as all processes agree
        if minutes:
            self.share = float(broadcast_one_to_all(np.float32(self._before / self._limit)))
        # The share that the longest evaluation took, and the share before the newest evaluation if
        # its length is not known yet.
        self._evaluation, self._before_evaluation = 0.0, None

    def __enter__(self) -> "TimeLimit":
        return self

    def __exit__(self, *exception) -> None:
        if self._begun is None:
            return
        # The evaluation after the limit does not count, in case the limit is raised later.
        if not self.is_up:
            self._read_clock()
        self._record()

    @property
    def is_up(self) -> bool:
        return bool(self._limit) and self.share >= 1

    @property
    def has_time_to_evaluate(self) -> bool:
        """Whether an evaluation as long as the longest one so far would end in time."""
        return not self._limit or self.share + self._evaluation < 1

    def of_step(self, mesh: Mesh) -> jax.Array | None:
        """Returns the used share, an input of the next step: one entry per device. None: no limit.

        Call it once per step. The clock starts with the first call, so compilation counts.
        """
        if not self._limit:
            return None
        self._read_clock()
        if self._seconds >= self._recorded + RECORDED_EVERY:
            self._record()
        share = self._seconds / self._limit if is_primary() else 0.0
        own = np.full(len(mesh.local_devices), share, np.float32)
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        return put_local(own, sharding, (mesh.size,))

    def update(self, results: Sequence[tuple[int, Mapping[str, jax.Array]]]) -> None:
        """Reads the share, on which all processes agree, from the metrics of the last step."""
        if not self._limit or not results:
            return
        self.share = float(jax.device_get(results[-1][1][TIME_USED]))
        if self._before_evaluation is not None:
            self._evaluation = max(self._evaluation, self.share - self._before_evaluation)
            self._before_evaluation = None

    def evaluated(self) -> None:
        """Notes that an evaluation has ended."""
        self._before_evaluation = self.share

    def saved(self, step: int) -> None:
        """Notes that a checkpoint of this step was saved."""
        if self._limit:
            self._at_step[step] = self._seconds / 60
            self._record()

    def _read_clock(self) -> None:
        now = clock()
        self._begun = now if self._begun is None else self._begun
        self._seconds = self._before + now - self._begun

    def _record(self) -> None:
        self._recorded = self._seconds
        with contextlib.suppress(OSError):  # checkpoints report a full disk
            write_json(self._path, {"minutes": self._seconds / 60, "at_step": self._at_step})


def _recorded(path: Path, start: int) -> tuple[float, dict[int, float]]:
    """Seconds used up to step `start`, and minutes by step; 0 and {} without a valid record."""
    try:
        record = json.loads(path.read_text())
        at_step = record.get("at_step", {}).items()
        at_step = {int(step): float(minutes) for step, minutes in at_step}
        at_step = {step: minutes for step, minutes in at_step.items() if step <= start}
        return 60 * at_step.get(start, float(record["minutes"])), at_step
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0.0, {}
