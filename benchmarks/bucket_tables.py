"""Two ways to read rows of a token table in a bucket: a complete copy, or ranges of the object.

    python benchmarks/bucket_tables.py --bucket=gs://BUCKET/benchmark [--megabytes=100]

Publishes a table of random ids, as data.cache_dir=gs://... does, and then reads rows in a random
order, as training does:

- copy: the seconds to copy the table to an empty disk, with its digests, and then those per row;
- ranges: the seconds per row if each row is a request for its bytes;
- blocks: the same through a cache of blocks on this machine, which may hold a part of the table.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from absl import app, flags
from fsspec.caching import BlockCache

from input_pipeline.bucket_cache import BucketCache
from input_pipeline.token_table import TokenTable, open_table, write_table
from storage.object_store import filesystem, read_range, remote_path

BUCKET = flags.DEFINE_string("bucket", None, "Where to write.", required=True)
MEGABYTES = flags.DEFINE_integer("megabytes", 100, "Size of the table.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "Repetitions.")
ROWS = flags.DEFINE_integer("rows", 400, "Rows that are read in a round.")
LENGTH = 1024  # ids in a row, of two bytes
BLOCK_BYTES = 2**20
SHARE = 0.1  # of the table that the cache of blocks may hold


def make_table(directory: Path, rows: int) -> None:
    """Writes a table of random ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**16, rows * LENGTH, np.uint16)
    arrays = {"ids.text": ids, "ends.text": np.arange(1, rows + 1) * LENGTH}
    write_table(directory, [TokenTable(arrays)])


def seconds_per_row(read: Callable[[int], np.ndarray], table: TokenTable, rows) -> float:
    """Reads rows, and compares them with those of the table on the disk."""
    begin = time.perf_counter()
    found = [read(row) for row in rows]
    taken = (time.perf_counter() - begin) / len(rows)
    for row, ids in zip(rows, found, strict=True):
        np.testing.assert_array_equal(ids, table.ids("text", row))
    return taken


def main(argv) -> None:
    del argv
    count = MEGABYTES.value * 10**6 // (2 * LENGTH)
    url, rng = f"{BUCKET.value}/{time.time_ns()}", np.random.default_rng(1)
    times: dict[str, list[float]] = {name: [] for name in ("copy", "mapped", "ranges", "blocks")}
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary, "table")
        made.mkdir()
        make_table(made, count)
        cache = BucketCache(url)
        cache.publish(made)
        files = filesystem(url)
        (path,) = (each for each in files.find(url) if each.endswith("/ids.text"))
        path = remote_path(f"{url.partition('://')[0]}://{path}")
        size = 2 * LENGTH

        for number in range(ROUNDS.value):
            rows = rng.permutation(count)[: ROWS.value].tolist()
            copy = Path(temporary, f"copy-{number}", "table")
            begin = time.perf_counter()
            assert cache.fetch(copy)
            times["copy"].append(time.perf_counter() - begin)
            table = open_table(copy)
            blocks = BlockCache(
                BLOCK_BYTES,
                lambda start, end: read_range(path, start, end - start),
                count * size,
                maxblocks=max(1, int(SHARE * count * size / BLOCK_BYTES)),
            )
            ways = {
                "mapped": lambda row, table=table: np.array(table.ids("text", row)),
                "ranges": lambda row: np.frombuffer(read_range(path, row * size, size), np.uint16),
                "blocks": lambda row, blocks=blocks: np.frombuffer(
                    blocks._fetch(row * size, (row + 1) * size), np.uint16
                ),
            }
            for name, read in ways.items():
                times[name].append(seconds_per_row(read, table, rows))
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(f"table: {count * size / 1e6:.0f} MB, {count:,} rows of {LENGTH} ids")
    print(f"copy   {middle['copy']:8.2f} s, then {middle['mapped'] * 1e6:8.1f} us for each row")
    for name in ("ranges", "blocks"):
        epoch = middle[name] * count
        print(f"{name} {middle[name] * 1e3:8.2f} ms for each row: {epoch:,.0f} s for an epoch")


if __name__ == "__main__":
    app.run(main)
