"""Errors that end a run early, each with its own exit code."""

STALLED = 70  # the exit code of the watchdog


class EndedError(RuntimeError):
    """A run ended early. The message is one line; the same command resumes the run."""

    exit_code = 1


class DivergedError(EndedError):
    """NaN or infinite loss, or a loss spike. Nothing was saved since."""

    exit_code = 65


class SaveFailedError(EndedError):
    """A checkpoint could not be written. Older ones are intact."""

    exit_code = 74


class EvaluationFailedError(EndedError):
    """The run is complete and saved, but its last evaluation failed."""

    exit_code = 71


class StoppedError(EndedError):
    """The run was asked to stop and saved its current step."""

    exit_code = 75
