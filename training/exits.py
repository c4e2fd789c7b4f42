"""Errors that end a run early, each with its own exit code."""

from collections.abc import Mapping
from typing import Any

STALLED = 70  # the exit code of the watchdog
AT_ONCE = 130  # after a second Ctrl-C, or before the first step: the process ends at once
DIED = 134  # another process of the job died: SIGABRT, with which jax's runtime ends the others


class EndedError(RuntimeError):
    """A run ended early. The message is one line; the same command resumes the run."""

    exit_code = 1
    # Whether all processes of a job end in this way by themselves, at the same step.
    is_joint = True


class DivergedError(EndedError):
    """NaN or infinite loss, or a loss spike. Nothing was saved since."""

    exit_code = 65


class UnrecordedError(EndedError):
    """A result could not be written to the run's directory. It is not lost: `record` has it."""

    exit_code = 74

    def __init__(self, message: str, record: Mapping[str, Any]):
        super().__init__(message)
        self.record = record


class SaveFailedError(EndedError):
    """A checkpoint could not be written. Older ones are intact."""

    exit_code = 74
    is_joint = False


class OutOfMemoryError(EndedError):
    """A device ran out of memory in a step, an evaluation or a generation."""

    exit_code = 69
    is_joint = False


class EvaluationFailedError(EndedError):
    """The run is complete and saved, but its last evaluation failed."""

    exit_code = 71


class StoppedError(EndedError):
    """The run was asked to stop and saved its current step."""

    exit_code = 75
