"""Silence for what libraries print of a save that fails, hundreds of lines around the one of ours.

`Checkpoints` waits for every save, and raises a SaveFailedError that says what went wrong.
"""

import logging
import sys


def silence() -> None:
    """For the whole process, so it is for scripts to call."""
    logging.getLogger("absl").addFilter(_is_no_traceback_of_orbax)
    logging.getLogger("asyncio").addFilter(_is_no_lost_exception)
    others = sys.unraisablehook

    def hook(unraisable) -> None:
        # Writes of tensorstore that end after the first of them has failed, and nobody waits.
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = hook


def _is_no_traceback_of_orbax(record: logging.LogRecord) -> bool:
    return not (record.exc_info and "orbax" in record.pathname)


def _is_no_lost_exception(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()
