"""Seeded mutations of bytes, of JSON and of files."""

import copy
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

HOSTILE = (
    None, True, False, 0, 1, -1, 2, 3, 7, -(10**9), 10**9, 3 * 10**8, 2**31, 2**63, 10**30, 10**400,
    0.0, -0.5, 0.5, 1.5, 1e-38, 1e300, float("nan"), float("inf"), "", " ", "a", "0", "NaN", "\0",
    "\ud800", "../../x", "/etc/passwd", "~", "x" * 100_000, [], {}, [None], [[]], [1, 2, 3],
    {"a": {}}, {"": None}, ["\ud800"], [10**400],
)  # fmt: skip
PIECES = (
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\t", b" ", b'"', b"{",
    b"[" * 5000, b"1e400", b"NaN", b"9" * 500, b"\\ud800", b"-", b"," * 50, b"A" * 70_000,
)  # fmt: skip


def hostile(rng: random.Random) -> Any:
    """One of HOSTILE, which the caller may change."""
    return copy.deepcopy(rng.choice(HOSTILE))


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    """The content with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        end = min(len(changed), place + rng.choice((1, 1, 2, 8, 64, 4096)))
        match rng.randrange(6):
            case 0 if changed:
                changed[min(place, len(changed) - 1)] = rng.randrange(256)
            case 1:
                del changed[place:end]
            case 2:
                changed[place:place] = rng.choice(PIECES)
            case 3:
                changed[place:place] = changed[place:end]
            case 4:
                del changed[place:]
            case _:
                changed[place:end] = rng.choice(PIECES)
    return bytes(changed)


def mutated_json(rng: random.Random, value: Any) -> Any:
    """The value with one to three entries that are missing, hostile, or new."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        holder = value
        if not isinstance(holder, dict | list) or not holder:
            return hostile(rng)
        while True:
            key = rng.choice(sorted(holder) if isinstance(holder, dict) else range(len(holder)))
            if not isinstance(holder[key], dict | list) or not holder[key] or rng.random() < 0.3:
                break
            holder = holder[key]
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("new", "", key + "s", "\0"))] = hostile(rng)
            case 2 if type(holder[key]) in (int, float):
                holder[key] *= rng.choice((-1, 0, 2, 3, 10**6, 10**9))
            case 3 if isinstance(holder[key], list):
                holder[key] = holder[key] * rng.choice((2, 50))
            case _:
                holder[key] = hostile(rng)
    return value


def mutate_file(rng: random.Random, path: Path) -> None:
    """Changes a file: its JSON, its bytes, or what is under its name."""
    kind = rng.random()
    if kind < 0.03:
        path.unlink()
        rng.choice((os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)))(path)
        return
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
        content = gzip.compress(mutated_bytes(rng, content)) if kind < 0.5 else path.read_bytes()
        path.write_bytes(content if kind < 0.5 else mutated_bytes(rng, content))
        return
    if kind < 0.7:
        try:
            path.write_text(json.dumps(mutated_json(rng, json.loads(content))))
            return
        except ValueError:
            pass
    path.write_bytes(mutated_bytes(rng, content))
