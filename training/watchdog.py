"""A watchdog that logs all stacks when a run makes no progress."""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from training.exits import STALLED


class Watchdog:
    """A thread that writes the stacks of all threads after `seconds` without a call of `beat`.

    They go to stderr and to stacks.txt in the workdir. With `ends`, the process then exits.
    """

    def __init__(self, workdir: Path, seconds: float, ends: bool):
        self._path = workdir / "stacks.txt"
        self._seconds, self._ends = seconds, ends
        self._last = time.monotonic()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._left.set()
        if self._seconds:
            self._thread.join()

    def beat(self) -> None:
        """Notes progress: the wait starts again."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        reported = None
        while not self._left.wait(self._seconds / 10):
            last = self._last
            # Reports each stall once.
            if time.monotonic() - last > self._seconds and reported != last:
                reported = last
                self._report()

    def _report(self) -> None:
        end = "; the run is ended" if self._ends else ""
        text = f"no progress for {self._seconds:g} s (failure.watchdog_seconds){end}; all stacks:"
        try:
            with self._path.open("a") as file:
                self._dump(text, file)
        except OSError:  # the disk may be the cause
            pass
        self._dump(text, sys.stderr)
        if self._ends:
            os._exit(STALLED)

    def _dump(self, text: str, file) -> None:
        print(text, file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
