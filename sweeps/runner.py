"""Runs cells as processes: train.py, then probes. Several run at a time, on one machine or many.

A cell is claimed by a lock, so any number of runners may share a sweep. A cell that fails does not
stop the others.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from checkpointing import run_directory
from experiment.command_line import BAD_INPUT
from experiment.schema import ConfigError
from sweeps.cells import CLAIMS, LOGS, Cell
from sweeps.job_devices import JobDevices, environment_of, pin
from sweeps.progress_table import ProgressTable

POLL_SECONDS = 0.1  # between looks at the running processes
WAIT_SECONDS = 2.0  # between attempts to claim cells that run elsewhere
IN_USE = "is in use by another run"  # what train.py says when another process has the lock


class RunningCell(NamedTuple):
    """A cell that runs in a process of its own."""

    cell: Cell
    process: subprocess.Popen
    claim: contextlib.ExitStack
    log_start: int  # bytes of the log before this process
    command: list[str]


class SweepEnd(NamedTuple):
    """How the cells of one runner ended."""

    failed: dict[str, str]  # name -> reason
    elsewhere: list[str]  # cells that another process runs
    was_stopped: bool


class Runner:
    """Runs cells. Its context forwards signals to the running cells."""

    def __init__(
        self,
        sweep: Path,
        command: Callable[[Cell], list[str]],
        devices: Sequence[JobDevices],
        is_done: Callable[[Cell], bool],
        progress: ProgressTable,
    ):
        """`command` returns the next command of a cell that is not done."""
        self._sweep, self._command, self._is_done = sweep, command, is_done
        self._progress = progress
        self._devices = list(devices)
        self._jobs: dict[int, RunningCell] = {}  # by the number of their devices
        self._signals: list[int] = []  # that were received
        self._forwarded = 0
        self._previous = {}

    def __enter__(self) -> "Runner":
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        for job in self._jobs.values():  # only after an error of our own
            self._signal(job, signal.SIGTERM)
        for job in self._jobs.values():
            job.process.wait()
            job.claim.close()

    def run(self, cells: Sequence[Cell], *, first: int = 0, waits: bool = False) -> SweepEnd:
        """Runs all cells that are not done, beginning with number `first`.

        With `waits`, it does not return before cells that run elsewhere are done, too.
        """
        pending = [*cells[first:], *cells[:first]]
        failed: dict[str, str] = {}
        elsewhere: list[Cell] = []
        while True:
            self._forward_signals()
            if not self._signals:
                self._start_some(pending, failed, elsewhere)
            self._collect(failed, elsewhere)
            self._progress.refresh([job.cell for job in self._jobs.values()])
            if not self._jobs and (self._signals or not pending):
                if self._signals or not (waits and elsewhere):
                    break
                time.sleep(WAIT_SECONDS)
                pending, elsewhere = elsewhere, []
                continue
            time.sleep(POLL_SECONDS)
        return SweepEnd(failed, [cell.name for cell in elsewhere], bool(self._signals))

    def _start_some(
        self, pending: list[Cell], failed: dict[str, str], elsewhere: list[Cell]
    ) -> None:
        for number in range(len(self._devices)):
            while pending and number not in self._jobs:
                cell = pending.pop(0)
                if self._is_done(cell):
                    continue
                claim = self._claim(cell)
                if claim is None:
                    elsewhere.append(cell)
                elif self._is_done(cell):  # another process has just finished it
                    claim.close()
                else:
                    self._try_start(number, cell, claim, failed)

    def _claim(self, cell: Cell) -> contextlib.ExitStack | None:
        """Locks the cell for this process; None if another one has it.

        The run itself locks its own directory, but only seconds after its start. This lock closes
        that gap, and is free again however this process ends.
        """
        claims = self._sweep / CLAIMS / cell.name
        workdir = cell.workdir(self._sweep)
        stack = contextlib.ExitStack()
        try:
            claims.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_directory.lock(claims))
            if workdir.is_dir():
                with run_directory.lock(workdir):  # a train.py that nobody claimed
                    pass
            return stack
        except ConfigError:
            stack.close()
            return None

    def _try_start(
        self, number: int, cell: Cell, claim: contextlib.ExitStack, failed: dict[str, str]
    ) -> None:
        try:
            self._jobs[number] = self._start(cell, self._devices[number], claim)
        except OSError as error:
            claim.close()
            failed[cell.name] = f"cannot be started ({error})"

    def _start(self, cell: Cell, devices: JobDevices, claim: contextlib.ExitStack) -> RunningCell:
        (self._sweep / LOGS).mkdir(exist_ok=True)
        command = self._command(cell)
        with cell.log(self._sweep).open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_of(devices, os.environ),
                # Ctrl-C at a terminal reaches this process only, which then asks each run once.
                start_new_session=True,
            )
        pin(process.pid, devices)
        return RunningCell(cell, process, claim, start, command)

    def _collect(self, failed: dict[str, str], elsewhere: list[Cell]) -> None:
        """Handles the jobs that have ended."""
        for number, job in list(self._jobs.items()):
            code = job.process.poll()
            if code is None:
                continue
            del self._jobs[number]
            is_done = code == 0 and self._is_done(job.cell)
            goes_on = code == 0 and not (is_done or self._signals)
            if goes_on and self._command(job.cell) != job.command:  # it has trained; now its probes
                self._try_start(number, job.cell, job.claim, failed)
                continue
            job.claim.close()
            if is_done:
                self._progress.cell_done(job.cell)
            elif self._signals:
                self._progress.line(f"{job.cell.name}: stopped")
            elif code == BAD_INPUT and IN_USE in self._said(job):
                elsewhere.append(job.cell)
            else:
                failed[job.cell.name] = self._reason(job, code)
                log = job.cell.log(self._sweep)
                self._progress.line(f"{job.cell.name}: failed: {failed[job.cell.name]} ({log})")

    def _said(self, job: RunningCell) -> str:
        with job.cell.log(self._sweep).open("rb") as log:
            log.seek(job.log_start)
            return log.read().decode(errors="replace")

    def _reason(self, job: RunningCell, code: int) -> str:
        lines = [line.strip() for line in self._said(job).splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed nothing"
        if code == 0:
            return "it ended without the metrics of its last step"
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{ended}: {last[:300]}"

    def _note(self, number: int, frame) -> None:
        """Only notes the signal: the loop may be printing."""
        self._signals.append(number)

    def _forward_signals(self) -> None:
        """Asks the running cells to save and stop; after a second Ctrl-C, to stop at once."""
        for place, number in enumerate(self._signals[self._forwarded :], start=self._forwarded):
            at_once = place > 0 and number == signal.SIGINT
            how = "at once" if at_once else "after saving"
            self._progress.line(f"{signal.Signals(number).name}: the running cells stop {how}")
            for job in self._jobs.values():
                self._signal(job, signal.SIGINT if at_once else signal.SIGTERM)
            self._forwarded += 1

    def _signal(self, job: RunningCell, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            job.process.send_signal(number)
