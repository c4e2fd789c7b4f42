"""Runs all tests of the table in docs/reliability.md, the long ones too, and prints what each row
reached.

python -m tests.reliability [what pytest is to be told]
"""

import math
import sys
from collections import Counter, defaultdict

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
    32: "loading while pruning", 33: "full disks, closed outputs", 34: "hostile images",
    35: "pipes, bombs, huge sizes", 36: "hostile tokenizers", 37: "damaged prepared data",
    38: "records missing or edited", 39: "files that may not be read", 40: "unbounded flags",
}  # fmt: skip
# Rows whose tests are those of a module, which lie beside the others of its package.
ELSEWHERE = {
    "tests/training/test_kept_records.py": 31,
    "tests/input_pipeline/sources/test_image_formats.py": 34,
    "tests/input_pipeline/sources/files/test_images.py::test_photographs_are_turned_upright": 34,
    "tests/experiment/test_untrusted_files.py": 35,
    "tests/pretrained/test_untrusted.py": 35,
    "tests/input_pipeline/tokenizers/test_file_checks.py": 36,
    "tests/input_pipeline/tokenizers/test_bounded_encoding.py": 36,
    "tests/input_pipeline/test_preparation.py": 37,
    "tests/checkpointing/test_run_identity.py": 38,
    "tests/checkpointing/test_digests.py": 39,
    "tests/inference/test_sampling_options.py": 40,
    "tests/training/test_device_memory.py": 40,
}


class Table:
    """What the tests say by their `figure` fixture, by row; and how many of ELSEWHERE passed."""

    def __init__(self):
        self.rows = defaultdict(list)
        self.passed = Counter()

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and not report.failed and not report.skipped:
            return
        figures = [value for name, value in report.user_properties if name == "figure"]
        numbers = [value for name, value in report.user_properties if name == "row"]
        for number, text in zip(numbers, figures, strict=True):
            self.rows[number].append(text)
        place = next((each for each in ELSEWHERE if report.nodeid.startswith(each)), "")
        if report.passed:
            self.passed[place] += 1
        else:
            self.passed[place] = -math.inf  # the row does not hold
            self.rows[0].append(f"{report.outcome}: {report.nodeid}")

    def print(self):
        for place, number in ELSEWHERE.items():
            if self.passed[place] > 0:
                self.rows[number].append(f"{self.passed[place]} tests passed: {place}")
        for number in sorted(WHAT):
            for text in self.rows[number] or ["not run, or failed"]:
                print(f"{number:>2}  {WHAT[number]:<28}  {text}")
        for text in self.rows[0]:
            print(text)


if __name__ == "__main__":
    table = Table()
    arguments = ["-q", "-m", "", "tests/reliability", *ELSEWHERE, *sys.argv[1:]]
    code = pytest.main(arguments, plugins=[table])
    table.print()
    sys.exit(code)
