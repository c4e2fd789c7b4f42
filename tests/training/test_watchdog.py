"""The watchdog logs the stacks of a run that hangs."""

import subprocess
import sys

from training.exits import STALLED
from training.watchdog import Watchdog

HANGS = """
import sys, threading
from pathlib import Path
from training.watchdog import Watchdog

def stands_still_here():
    threading.Event().wait()

with Watchdog(Path(sys.argv[1]), seconds=0.2, ends=True):
    stands_still_here()
"""


def test_a_hang_is_logged_with_all_stacks_and_ended(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True
    )
    assert ended.returncode == STALLED
    for text in (ended.stderr, (tmp_path / "stacks.txt").read_text()):
        assert "no progress for 0.2 s (failure.watchdog_seconds); the run is ended" in text
        assert "in stands_still_here" in text


def test_zero_seconds_disable_the_watchdog(tmp_path):
    with Watchdog(tmp_path, seconds=0.0, ends=False):
        pass
    assert list(tmp_path.iterdir()) == []
