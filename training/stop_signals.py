"""Requests to stop: by a scheduler (SIGTERM) or at the keyboard (Ctrl-C, SIGINT)."""

import os
import signal
import sys
import threading

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point

from training.exits import AT_ONCE
from training.job_ends import first_step_is_done


class StopRequest:
    """Within this context, signals only set a flag, which the loop reads after each step.

    With several processes, the signal may reach only one. jax's preemption service handles SIGTERM
    then: it tells all processes, and they agree on a step to stop after. Until the first step is
    done, signals end the job at once (training/job_ends.py).
    """

    def __init__(self):
        self._signal: signal.Signals | None = None
        self._previous = {}

    def __enter__(self) -> "StopRequest":
        if jax.process_count() == 1:
            self._take(signal.SIGINT, signal.SIGTERM)
        return self

    def _take(self, *numbers: signal.Signals) -> None:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in numbers:
                self._previous[number] = signal.signal(number, self._note)

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if self._signal is not None and number == signal.SIGINT:
            print("stopped at once, without saving", file=sys.stderr, flush=True)
            os._exit(AT_ONCE)
        self._signal = signal.Signals(number)
        print(
            f"{self._signal.name}: saving after this step; Ctrl-C stops at once",
            file=sys.stderr,
            flush=True,
        )
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def is_for(self, step: int) -> bool:
        """Whether the run is to stop after this step. Call it exactly once per step."""
        if jax.process_count() > 1:
            if not self._previous:
                first_step_is_done()
                self._take(signal.SIGINT)
            return reached_preemption_sync_point(step)
        return self._signal is not None

    @property
    def cuts_short(self) -> bool:
        """Whether an evaluation may be cut short: not if other processes wait for its end."""
        return self._signal is not None and jax.process_count() == 1
