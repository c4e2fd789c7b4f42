"""Opens hostile files, and prints how many were refused and by how much memory grew, as JSON."""

import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.tokenizers import published_files
from pretrained import published


def memory() -> int:
    """The most that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def refused(open_it, path: Path) -> bool:
    try:
        open_it(path)
    except ConfigError:
        return True
    return False


def mutated_headers(directory: Path, count: int) -> int:
    weights = directory / "model.safetensors"
    original = bytearray(weights.read_bytes())
    size = int.from_bytes(original[:8], "little")
    rng, total = np.random.default_rng(0), 0
    for _ in range(count):
        spoilt = original.copy()
        for place in rng.integers(0, 8 + size, rng.integers(1, 4)):
            spoilt[place] = rng.integers(256)
        weights.write_bytes(spoilt)
        total += refused(published.read, directory)
    weights.write_bytes(original)
    return total


def nested(directory: Path) -> int:
    """100 MB of brackets: as a tokenizer, as what stands beside one, and as a model's config."""
    (directory / "tokenizer").mkdir()
    (directory / "beside").mkdir()
    files = [
        directory / "tokenizer" / "tokenizer.json",
        directory / "beside" / "tokenizer_config.json",
    ]
    for file in (*files, directory / "config.json"):
        with file.open("wb") as out:
            for _ in range(100):
                out.write(b"[" * 2**20)
    (directory / "beside" / "vocab.txt").write_text("[UNK]\na\n")
    total = refused(published_files.open_tokenizer, files[0])
    total += refused(published_files.open_tokenizer, directory / "beside" / "vocab.txt")
    return total + refused(published.read, directory)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    published.read(directory)  # what a good one takes is not growth
    os.chdir(directory)
    before = memory()
    headers = mutated_headers(directory, 500)
    deep = nested(directory)
    print(json.dumps({"headers": headers, "nested": deep, "growth": memory() - before}))
