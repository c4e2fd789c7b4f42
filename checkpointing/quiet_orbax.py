"""Silence for what libraries print of saves.

Of one that fails, hundreds of lines around the one of ours: `Checkpoints` waits for every save, and
raises a SaveFailedError that says what went wrong. And of one that was waited for, advice to save
less often.
"""

import logging
import sys


def silence() -> None:
    """For the whole process, so it is for scripts to call."""
    logging.getLogger("absl").addFilter(_is_not_orbax_on_saves)
    logging.getLogger("asyncio").addFilter(_is_no_lost_exception)
    others = sys.unraisablehook

    def hook(unraisable) -> None:
        # Writes of tensorstore that end after the first of them has failed, and nobody waits.
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = hook


def _is_not_orbax_on_saves(record: logging.LogRecord) -> bool:
    is_advice = record.getMessage().startswith("Waiting for previous save")
    return "orbax" not in record.pathname or not (record.exc_info or is_advice)


def _is_no_lost_exception(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()
