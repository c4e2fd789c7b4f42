"""The examples of several files as one sequence; splits files that name no splits."""

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
from input_pipeline.sources.base import SHARE_BY_HASH, BadRecordError, hash_fraction
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.splits import find_splits

UNREADABLE = 1.0  # in place of a hash, which is below 1
# Shards that stay open. Examples are read roughly in order, so few shards are needed at a time.
# Each takes a file descriptor, or memory if it is gzip.
OPEN = 4


class Shards(Sequence):
    """The examples of several files, concatenated.

    `make` takes the lines of one shard (a `Lines` for each of its files) and returns its examples
    by line number. `sizes`: the number of examples in each shard.
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
        """The index of the first example of each shard that is not empty."""
        return [stop - size for stop, size in zip(self._stops, self._sizes, strict=True) if size]

    def at(self, index: int) -> tuple[Any, int]:
        """Where an example is: the examples of its shard, and the line number in them."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._stops, index)
        return self._shard(number), index - self._stops[number] + self._sizes[number]

    def __getitem__(self, index: int) -> Any:
        examples, line = self.at(index)
        return examples[line]

    def __reduce__(self):
        return Shards, (self._make, self._files, self._sizes)


class SelectedExamples(Sequence):
    """The examples with the indices `numbers`."""

    def __init__(self, examples: "ShardedExamples", numbers: np.ndarray):
        self._examples, self._numbers = examples, numbers

    def __len__(self):
        return len(self._numbers)

    def at(self, index: int) -> tuple[Any, int]:
        return self._examples.at(int(self._numbers[index]))

    def __getitem__(self, index: int) -> Any:
        examples, line = self.at(index)
        return examples[line]


ShardedExamples = Shards | SelectedExamples


def open_shards(
    make: Callable[..., Sequence], files: Sequence[tuple[Path, ...]]
) -> tuple[Shards, list[str]]:
    """The examples of these shards, and strings that identify their content, for a digest."""
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
    """The examples of both splits; `digests` are strings that identify the files' content."""

    train: ShardedExamples
    eval: ShardedExamples
    digests: Sequence[str]
    # If the files name no splits: the share of the examples that a hash chose for evaluation.
    eval_share: float | None = None

    @property
    def facts(self) -> dict[str, float]:
        """What `Splits.description` says of a split by hash."""
        return {} if self.eval_share is None else {SHARE_BY_HASH: self.eval_share}


def open_splits(
    data: DataConfig,
    make: Callable[[Lines], Sequence],
    endings: Sequence[str],
    key: str,
    examine: Callable[[Shards], None] = lambda examples: None,
) -> OpenedSplits:
    """Opens the training and the evaluation split.

    If the files name no splits, a hash of each example's field `key` decides its split. `examine`
    is called with the training examples, or with all examples before they are split by hash; it may
    raise ConfigError.
    """
    names = data.train_split, data.eval_split
    first, second = find_splits(data.path, names, endings, allow_unsplit=True)
    train, digests = open_shards(make, [(file,) for file in first.values()])
    examine(train)
    if not second:
        digests.append(f"{key} hashed below {data.eval_share}")
        return OpenedSplits(*_split_by_hash(train, key, data), digests, data.eval_share)
    evaluation, more = open_shards(make, [(file,) for file in second.values()])
    return OpenedSplits(train, evaluation, digests + more)


def _split_by_hash(
    examples: Shards, key: str, data: DataConfig
) -> tuple[SelectedExamples, SelectedExamples]:
    """(training, evaluation) examples, chosen by a hash of the text.

    A hash, because files may be sorted, and because equal texts must be in the same split.
    """
    fractions = np.fromiter((_fraction(examples, i, key) for i in range(len(examples))), float)
    is_eval = fractions < data.eval_share
    count, readable = np.count_nonzero(is_eval), np.count_nonzero(fractions < UNREADABLE)
    if readable and count in (0, readable):
        raise ConfigError(
            f"data.eval_share={data.eval_share:g} holds out {count} of the {readable} records of "
            f"{data.path}; change it, or name files after the splits"
        )
    train, evaluation = np.flatnonzero(~is_eval), np.flatnonzero(is_eval)
    return SelectedExamples(examples, train), SelectedExamples(examples, evaluation)


def _fraction(examples: Shards, index: int, key: str) -> float:
    """The hash of an example. Bad records go to the training split, where they are counted."""
    try:
        return hash_fraction(examples[index][key])
    except BadRecordError:
        return UNREADABLE
