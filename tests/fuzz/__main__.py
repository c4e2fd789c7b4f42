"""Hostile input to everything that reads files or flags: python -m tests.fuzz --seconds=N --seed=S

Each try is a target with a seed (targets.py), in a process that is started again if the try ends
or hangs it. Findings are: an exception other than a refusal, a process that ended, a try of more
than --limit seconds, or growth by more than 4 GB. Each is printed with the command that repeats it,
and its files are kept in --keep. The exit code is 1 if there is any.

--only=TARGET:SEED repeats one try; --only=TARGET makes tries of one target. SIGTERM ends it with
the counts so far. On a busy machine raise --limit: it is not the seconds of a processor.
"""

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = (
    "configs", "flags", "published_configs", "conversions", "tensor_headers", "gguf_files",
    "tokenizers", "line_files", "images", "run_directories",
)  # fmt: skip
_stopped: list = []  # filled by a signal
START_SECONDS = 600  # to import everything and train a small run, on a busy machine
QUICK = {
    "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
}  # fmt: skip


class Worker:
    """A process of worker.py, with the tries of a module."""

    def __init__(self, directory: Path, module: str = "tests.fuzz.targets"):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", module],
            cwd=ROOT,
            env={**os.environ, **QUICK, "FUZZ_DIRECTORY": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        if self._read(START_SECONDS) is None:
            raise SystemExit(f"the worker did not start: {self._said()}")

    def attempt(self, name: str, seed: int, directory: Path, limit: float) -> tuple[str, str]:
        """Makes a try; returns (accepted | refused, "") or (kind of finding, its text)."""
        self._errors.seek(0)
        self._errors.truncate()
        self._process.stdin.write(f"{name} {seed} {directory}\n".encode())
        self._process.stdin.flush()
        begin = time.monotonic()
        answer = self._read(limit)
        if answer is None:
            kind = "hang" if time.monotonic() - begin >= limit else "crash"
            if kind == "hang":
                self._process.send_signal(signal.SIGUSR1)  # its stacks
                time.sleep(1)
            self._process.kill()
            return kind, f"exit code {self._process.wait()}\n{self._said()}"
        if "traceback" not in answer:
            return ("accepted" if answer["accepted"] else "refused"), ""
        last = answer["traceback"].strip().splitlines()[-1]
        return ("memory" if last.startswith("MemoryError") else "traceback"), answer["traceback"]

    def _read(self, seconds: float) -> dict | None:
        """The next answer; None if there is none in this time, or the process has ended."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # a try that was never read
                file.close()


def seeds(seed: int, only: str) -> Iterator[tuple[str, int]]:
    """Yields (target, seed of the try) without end, or once for TARGET:SEED."""
    target, _, number = only.partition(":")
    if number:
        yield target, int(number)
        return
    rng = random.Random(seed)
    while True:
        yield target or rng.choice(TARGETS), rng.randrange(2**32)


def fuzz(
    seconds: float, tries: Iterable[tuple[str, int]], keep: Path, limit: float, **options: str
) -> Counter:
    """Makes tries for so long; returns how many ended in each way. Prints findings."""
    counts, known = Counter(), set()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        worker = Worker(Path(place), **options)
        end = time.monotonic() + seconds
        for name, number in tries:
            if time.monotonic() > end or _stopped:
                break
            directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
            kind, text = worker.attempt(name, number, directory, limit)
            counts[kind] += 1
            counts[f"{name} {kind}"] += 1
            if kind not in ("accepted", "refused"):
                lines = [line for line in text.splitlines() if line.strip().startswith("File ")]
                fault = (name, kind, *lines[-2:])
                if fault not in known:  # the same fault is shown once, not for each seed
                    known.add(fault)
                    show(kind, f"{name}:{number}", text, directory, keep / f"{name}-{number}")
            shutil.rmtree(directory, ignore_errors=True)
            if not worker.is_alive:
                worker.close()
                worker = Worker(Path(place), **options)
        worker.close()
    counts["different findings"] = len(known)
    return counts


def stop(*given) -> None:
    """Ends `fuzz` after the current try."""
    _stopped.append(given)


def show(kind: str, what: str, text: str, directory: Path, target: Path) -> None:
    """Prints a finding, and keeps its files and all of its text."""
    shutil.copytree(directory, target, dirs_exist_ok=True, ignore=_devices)
    (target / "finding.txt").write_text(text)
    print(f"{kind}: python -m tests.fuzz --only={what}   files: {target}")
    print("\n".join(text.strip().splitlines()[-6:]), flush=True)


def _devices(directory: str, names: list[str]) -> list[str]:
    """What cannot be copied: pipes, and links to devices."""
    paths = {name: Path(directory, name) for name in names}
    return [name for name, path in paths.items() if not path.is_dir() and not path.is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="seconds of one try")
    parser.add_argument("--only", default="", help="TARGET or TARGET:SEED")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "fuzz-findings"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    counts = fuzz(given.seconds, seeds(given.seed, given.only), given.keep, given.limit)
    for name, count in sorted(counts.items()):
        print(f"{count:7,}  {name}")
    sys.exit(counts["different findings"] > 0)


if __name__ == "__main__":
    main()
