"""Runs every test of this directory, the long ones too, and prints what each row reached.

python -m tests.reliability [what pytest is to be told]
"""

import sys
from collections import defaultdict

import pytest

WHAT = {
    1: "same config twice", 2: "stopped and resumed", 3: "kill -9 at random", 4: "SIGTERM, SIGINT",
    5: "SIGTERM to one of two", 6: "kill -9 of one of two", 7: "a flipped bit",
    8: "newest checkpoint damaged", 9: "leftovers of a save", 10: "disk full", 11: "other devices",
    12: "other processes", 13: "every example once", 14: "resumed with another config",
    15: "a loss that is no number", 16: "a loss that leaps", 17: "bad records", 18: "nothing to do",
    19: "fuzzed configs", 20: "hostile files", 21: "a standstill", 22: "evaluation fails",
    23: "two runs in a workdir", 24: "a workdir that is not shared",
    25: "one process is refused", 26: "a signal or fault while waiting",
    27: "processes that do not come", 28: "generate.py interrupted", 29: "convert.py killed",
    30: "out of memory", 31: "records deleted",
    32: "loading while pruning", 33: "full disks, closed outputs",
}  # fmt: skip


class Table:
    """What the tests say by their `figure` fixture, by row."""

    def __init__(self):
        self.rows = defaultdict(list)

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and not report.failed and not report.skipped:
            return
        figures = [value for name, value in report.user_properties if name == "figure"]
        numbers = [value for name, value in report.user_properties if name == "row"]
        for number, text in zip(numbers, figures, strict=True):
            self.rows[number].append(text)
        if not report.passed:
            self.rows[0].append(f"{report.outcome}: {report.nodeid}")

    def print(self):
        for number in sorted(WHAT):
            for text in self.rows[number] or ["not run, or failed"]:
                print(f"{number:>2}  {WHAT[number]:<28}  {text}")
        for text in self.rows[0]:
            print(text)


if __name__ == "__main__":
    table = Table()
    code = pytest.main(["-q", "-m", "", "tests/reliability", *sys.argv[1:]], plugins=[table])
    table.print()
    sys.exit(code)
