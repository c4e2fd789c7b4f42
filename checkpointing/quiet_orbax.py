"""Silences what libraries print about saves.

When a save fails, they print hundreds of lines, although `Checkpoints` waits for every save and
raises a SaveFailedError with the reason. While one is waited for, they advise to save less often.
"""

import logging
import sys


def silence() -> None:
    """Installs the filters for the whole process; only scripts should call it."""
    logging.getLogger("absl").addFilter(_is_not_orbax_on_saves)
    logging.getLogger("asyncio").addFilter(_is_no_lost_exception)
    others = sys.unraisablehook

    def hook(unraisable) -> None:
        # Raised by tensorstore's other writes after the first one has failed.
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = hook


def _is_not_orbax_on_saves(record: logging.LogRecord) -> bool:
    is_advice = record.getMessage().startswith("Waiting for previous save")
    return "orbax" not in record.pathname or not (record.exc_info or is_advice)


def _is_no_lost_exception(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()
