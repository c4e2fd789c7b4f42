"""How a run may end before its last step, each with an exit code of its own."""

STALLED = 70  # ended by the watchdog


class EndedError(RuntimeError):
    """The reason is the message, one line; the same command run again goes on."""

    exit_code = 1


class DivergedError(EndedError):
    """The loss is no number, or far from those before it, and nothing was saved since."""

    exit_code = 65


class SaveFailedError(EndedError):
    """A checkpoint could not be written; older ones are as they were."""

    exit_code = 74


class EvaluationFailedError(EndedError):
    """The run is complete and saved, but its last evaluation is not."""

    exit_code = 71


class StoppedError(EndedError):
    """Somebody asked the run to stop: it was saved at the current step."""

    exit_code = 75
