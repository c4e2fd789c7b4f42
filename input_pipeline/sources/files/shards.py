"""The records of many files as one sequence; splits files that have no splits."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import BadRecordError, hash_fraction
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.splits import find_splits

UNREADABLE = 1.0  # in place of a hash, which is below 1
# Shards that stay open. Records are read roughly in order, so few are needed at a time. Each takes
# a file descriptor, or memory if it is gzip.
OPEN = 4


class Shards(Sequence):
    """The records of several files, concatenated.

    `make` takes the lines of a file, or of files that belong together, and returns the records by
    line number. `sizes` are their numbers of records.
    """

    def __init__(
        self, make: Callable[..., Sequence], files: Sequence[tuple[Path, ...]], sizes: Sequence[int]
    ):
        self._make, self._files, self._sizes = make, files, sizes
        self._stops = list(itertools.accumulate(sizes))
        self._shard = functools.lru_cache(maxsize=OPEN)(self._open)

    def _open(self, number: int) -> Sequence:
        return self._make(*map(Lines, self._files[number]))

    def __len__(self):
        return self._stops[-1]

    @property
    def starts(self) -> list[int]:
        """The number of the first record of each file that has any."""
        return [stop - size for stop, size in zip(self._stops, self._sizes, strict=True) if size]

    def at(self, index: int) -> tuple[Any, int]:
        """Where a record is: the records of its file, and its line there."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._stops, index)
        return self._shard(number), index - self._stops[number] + self._sizes[number]

    def __getitem__(self, index: int) -> Any:
        records, line = self.at(index)
        return records[line]

    def __reduce__(self):
        return Shards, (self._make, self._files, self._sizes)


class SelectedRecords(Sequence):
    """A selection of records."""

    def __init__(self, records: "Records", numbers: np.ndarray):
        self._records, self._numbers = records, numbers

    def __len__(self):
        return len(self._numbers)

    def at(self, index: int) -> tuple[Any, int]:
        return self._records.at(int(self._numbers[index]))

    def __getitem__(self, index: int) -> Any:
        records, line = self.at(index)
        return records[line]


Records = Shards | SelectedRecords


def open_shards(
    make: Callable[..., Sequence], files: Sequence[tuple[Path, ...]]
) -> tuple[Shards, list[str]]:
    """The records of these files, and the parts of a digest of them."""
    sizes, digests = [], []
    for paths in files:
        lines = [Lines(path) for path in paths]
        sizes.append(len(make(*lines)))
        digests += [each.digest for each in lines]
    if len(files) > 1:
        digests.append(str(len(files)))  # so that other groupings of the same files differ
    return Shards(make, files, sizes), digests


@dataclasses.dataclass(frozen=True)
class OpenedSplits:
    """The records of both splits, and the parts of a digest."""

    train: Records
    held_out: Records
    digests: Sequence[str]
    from_heap: bool  # the files have no splits; a share was held out


def open_splits(
    data: DataConfig,
    make: Callable[[Lines], Sequence],
    endings: Sequence[str],
    key: str,
    examine: Callable[[Shards], None] = lambda records: None,
) -> OpenedSplits:
    """The records of both splits; those of a heap are parted by the text in their field `key`.

    `examine` gets the training records, or the whole heap before it is parted, and may refuse it.
    """
    names = data.train_split, data.eval_split
    first, second = find_splits(data.path, names, endings, heap_is_fine=True)
    train, digests = open_shards(make, [(file,) for file in first.values()])
    examine(train)
    if not second:
        digests.append(f"{key} hashed below {data.eval_share}")
        return OpenedSplits(*_parted(train, key, data), digests, from_heap=True)
    held_out, more = open_shards(make, [(file,) for file in second.values()])
    return OpenedSplits(train, held_out, digests + more, from_heap=False)


def _parted(heap: Shards, key: str, data: DataConfig) -> tuple[SelectedRecords, SelectedRecords]:
    """Splits by a hash of the text: files may be sorted, and equal texts must stay together."""
    fractions = np.fromiter((_fraction(heap, i, key) for i in range(len(heap))), float)
    held_out = fractions < data.eval_share
    count, readable = np.count_nonzero(held_out), np.count_nonzero(fractions < UNREADABLE)
    if readable and count in (0, readable):
        raise ConfigError(
            f"data.eval_share={data.eval_share:g} holds out {count} of the {readable} records of "
            f"{data.path}; change it, or name files after the splits"
        )
    return SelectedRecords(heap, np.flatnonzero(~held_out)), SelectedRecords(
        heap, np.flatnonzero(held_out)
    )


def _fraction(heap: Shards, index: int, key: str) -> float:
    """The hash of a record. Bad records go to the training split, where they are counted."""
    try:
        return hash_fraction(heap[index][key])
    except BadRecordError:
        return UNREADABLE
