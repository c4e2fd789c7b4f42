"""Tries that go wrong in each way that the fuzzer must notice."""

import os
import time
from pathlib import Path


def prepare() -> None:
    """Nothing is needed."""


def attempt(name: str, seed: int, directory: Path) -> bool:
    (directory / "input").write_text(f"{name} {seed}")
    match name:
        case "traceback":
            raise KeyError(seed)
        case "panic":
            raise BaseException("a panic of a library")
        case "exit":
            raise SystemExit(3)
        case "crash":
            os.abort()
        case "hang":
            time.sleep(600)
        case "memory":
            bytearray(5 * 2**30)
        case "noise":
            print("a library talks")
            os.write(1, b"even here\n")
    return name != "refused"
