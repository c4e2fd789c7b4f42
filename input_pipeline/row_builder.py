"""Splits -> rows: one example per row for evaluation; packed or bucketed for training."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.buckets import choose_buckets
from input_pipeline.class_balance import oversampled
from input_pipeline.config import DataConfig
from input_pipeline.objectives.objective import TaskSpec
from input_pipeline.packing import Plan
from input_pipeline.row_layout import RowLayout
from input_pipeline.rows import (
    ExampleRows,
    GroupedRows,
    PatchedRows,
    Rows,
    SentenceRows,
    WindowRows,
)
from input_pipeline.sources.base import PATCHED, Example, Splits
from input_pipeline.token_cache import TokenCache
from input_pipeline.tokenizers.tokenizer import Tokenizer
from input_pipeline.too_long import NAMES, TooLong


@dataclasses.dataclass(frozen=True)
class Stream:
    """Training rows with one layout."""

    rows: Rows
    weight: float  # its share in a mixture; 0: proportional to its size
    layout: RowLayout
    name: str = ""  # of its source in a mixture


class RowBuilder:
    """Makes rows for one task. Counts examples that do not fit and records that cannot be read."""

    def __init__(
        self, data: DataConfig, tokenizer: Tokenizer | None, task: TaskSpec, cache: TokenCache
    ):
        self._data, self._tokenizer, self._task, self._cache = data, tokenizer, task, cache
        self.too_long: Counter[str] = Counter()  # examples truncated or dropped, by split
        self.over_long: dict[tuple[str, str], TooLong] = {}  # details, by split and text
        self.bad_records: Counter[str] = Counter()  # records that could not be read, by split
        self.class_counts: np.ndarray | int = 0  # training rows of each class
        self.bucket_lengths: list[int] = []  # lengths that batches are padded to

    def streams(self, splits: Splits, weight: float) -> Iterator[Stream]:
        """The training rows: one stream, or one per length bucket."""
        data, task = self._data, self._task
        needs_lengths = data.packing or data.sorts_by_length or data.over_long == "drop"
        needs_lengths |= data.weighs_classes  # and labels
        if splits.storage == "none" and needs_lengths:
            raise ConfigError(
                f"data.source={data.source!r} generates its examples on demand, so their lengths "
                "are not known; set data.packing=False, data.buckets=(), data.bucket_count=0, "
                "data.over_long=truncate, data.class_balance=none and data.class_weights=()"
            )
        rows = self._rows(splits, data.train_split, splits.train, data.over_long, splits.storage)
        used = np.arange(len(rows))
        if data.weighs_classes:
            labels_b = rows.numbers("label")
            counts_c = np.bincount(labels_b, minlength=len(splits.labels))
            self.class_counts = counts_c + self.class_counts
            if data.class_balance == "oversample":
                used = oversampled(labels_b, len(splits.labels))
        if data.packing:
            capacities = [sequence.length for sequence in task.sequences]
            packed = GroupedRows(rows, self._cache.plan(rows.sizes(), capacities))
            layout = task.layout(data.length, data.encoder_length, packed=True)
            yield Stream(packed, weight, layout)
        elif data.sorts_by_length:
            sizes, lengths = rows.sizes(), [sequence.length for sequence in task.sequences]
            if data.bucket_count:
                bounds = choose_buckets(sizes.max(axis=1), data.bucket_count, max(lengths))
            else:
                bounds = sorted({*data.buckets, max(lengths)})
            bucket_of = _smallest_bucket(sizes, lengths, bounds)
            for number, bound in enumerate(bounds):
                chosen = used[bucket_of[used] == number]
                if len(chosen):
                    self.bucket_lengths = sorted({*self.bucket_lengths, bound})
                    columns = min(bound, data.length), min(bound, data.encoder_length)
                    plan = Plan(chosen, np.arange(len(chosen) + 1))
                    layout = task.layout(*columns, packed=False)
                    yield Stream(GroupedRows(rows, plan), weight, layout)
        else:
            layout = task.layout(data.length, data.encoder_length, packed=False)
            if len(used) > len(rows):
                rows = GroupedRows(rows, Plan(used, np.arange(len(used) + 1)))
            yield Stream(rows, weight, layout)

    def eval_rows(self, splits: Splits, name: str) -> Rows:
        """The rows of an evaluation split: one example per row, truncated if it is too long.

        Documents are concatenated and cut into windows, unless data.packing keeps them apart.
        """
        examples, storage = splits.evals[name], splits.storage
        if storage == "none" and examples is not splits.train:
            storage = "memory"
        return self._rows(splits, name, examples, "truncate", storage)

    def _rows(
        self, splits: Splits, split: str, examples: Sequence[Example], over_long: str, storage: str
    ) -> Rows:
        """The rows of one split; adds to the counts."""
        task = self._task
        if splits.kind in PATCHED:
            return PatchedRows(examples)
        table = self._cache.table(splits, split, examples, self._tokenizer, task.features, storage)
        if task.features.sentences:
            rows = SentenceRows(table, task.sequences[0].room)
        elif splits.kind == "documents" and self._data.packing:
            rows = ExampleRows(table, task.sequences, "split")
        elif splits.kind == "documents":
            rows = WindowRows(table, task.sequences[0].room)
        else:
            rows = ExampleRows(table, task.sequences, over_long)
        continues = splits.kind == "documents"  # a long document continues in the next row
        too_long = 0 if continues else rows.too_long
        if not len(rows):
            raise ConfigError(
                f"the split {split!r} of data.source={self._data.source!r} leaves no rows "
                f"({len(table)} entries, {too_long} too long, {len(table.bad)} bad records); "
                "raise data.length, or choose another data.over_long or data.path"
            )
        self.too_long[split] += too_long
        for sequence, count, longest in () if continues else rows.long_sequences:
            found = TooLong(
                split=split,
                what=NAMES.get(sequence.fields, " and ".join(sequence.fields)),
                key=sequence.key,
                length=sequence.length,
                action=over_long,
                count=count,
                total=len(table),
                longest=longest,
                costs_answers="target" in sequence.fields and split in splits.evals,
            )
            before = self.over_long.get((split, found.what))
            self.over_long[split, found.what] = before + found if before else found
        self.bad_records[split] += len(table.bad)
        return rows


def _smallest_bucket(
    sizes: np.ndarray, lengths: Sequence[int], bounds: Sequence[int]
) -> np.ndarray:
    """For each row, the index of the smallest bound that is enough for all its sequences."""
    limits = np.minimum(np.array(bounds)[:, None], lengths)  # by bucket and sequence
    return (sizes[:, None] <= limits).all(axis=2).argmax(axis=1)
