"""Messages of Orbax and its background threads about failures are silenced; others are not."""

import logging
import sys
from types import SimpleNamespace

import pytest

from checkpointing import quiet_orbax

ORBAX = "site-packages/orbax/checkpoint/checkpoint_manager.py"
OURS = "checkpointing/checkpoint_manager.py"
LOST = "Task exception was never retrieved"
ADVICE = "Waiting for previous save to complete took %f seconds. If this number is high, ..."
FAILED = (OSError, OSError("No space left on device"), None)


@pytest.fixture
def silenced(monkeypatch):
    for name in ("absl", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    quiet_orbax.silence()
    return raised


@pytest.mark.parametrize(
    ("logger", "path", "message", "exception", "passes"),
    [
        ("absl", ORBAX, "Save Finalize thread failed", FAILED, False),
        ("absl", ORBAX, ADVICE, None, False),
        ("absl", ORBAX, "something else", None, True),
        ("absl", OURS, "Save Finalize thread failed", FAILED, True),
        ("asyncio", "base_events.py", LOST, FAILED, False),
        ("asyncio", "base_events.py", "something else", FAILED, True),
    ],
)
def test_log_records(silenced, logger, path, message, exception, passes):
    given = (2.0,) if "%f" in message else ()
    record = logging.LogRecord(logger, logging.ERROR, path, 1, message, given, exception)
    assert bool(logging.getLogger(logger).filter(record)) == passes


@pytest.mark.parametrize(("message", "passes"), [("Event loop is closed", False), ("!", True)])
def test_unraisable_exceptions(silenced, message, passes):
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(message)))
    assert bool(silenced) == passes
