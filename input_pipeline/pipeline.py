"""Batches by number: the n-th one depends on the config, the seed and n, and on nothing else.

    source -> tokenizer -> rows -> shuffle -> objective -> batch

Global row r of a run (row r % batch_size of batch r // batch_size) is example `shuffled(r)`, put
through the objective with the r-th random stream. A process builds only its own share of the rows
of a batch; the shares of all processes, in order, are the batch of a single process.
"""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from input_pipeline import huggingface_source, randomness, task, tfds_source
from input_pipeline.config import DataConfig
from input_pipeline.embedded import dates, digits, names, pydoc
from input_pipeline.objectives import Fields
from input_pipeline.rows import ExampleRows, WindowRows
from input_pipeline.shuffle import shuffled
from input_pipeline.source import Example, Splits, content_digest
from input_pipeline.tokenizer import ByteTokenizer
from schema import ConfigError

# To be raised when the same config and source come to give other batches: it is part of the
# digest, so that no run continues on data it did not start with.
VERSION = 1

SOURCES = {"dates": dates.load, "digits": digits.load, "names": names.load, "pydoc": pydoc.load}
# Held-out data is hidden and cut in the same way in every run.
EVAL_SEED = 0

Batch = dict[str, np.ndarray]


def load(
    data: DataConfig,
    *,
    objective: str,
    noise_rate: float,
    mean_span: float,
    next_sentence: bool,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> "Data":
    _share_of(data.batch_size, process_index, process_count, "data.batch_size")
    match data.source:
        case "tfds":
            splits = tfds_source.load(data)
        case "huggingface":
            splits = huggingface_source.load(data)
        case _:
            splits = SOURCES[data.source]()
    tokenizer = None if splits.kind == "images" else ByteTokenizer()
    chosen = task.choose(
        objective,
        splits,
        data,
        tokenizer,
        noise_rate=noise_rate,
        mean_span=mean_span,
        next_sentence=next_sentence,
    )
    return Data(data, splits, tokenizer, chosen, seed, process_index, process_count)


class Data:
    """One source under one objective. Of its batches, a process sees its own rows only."""

    def __init__(
        self,
        config: DataConfig,
        splits: Splits,
        tokenizer: ByteTokenizer | None,
        chosen: task.Task,
        seed: int,
        process_index: int,
        process_count: int,
    ):
        self._config, self._task, self._seed = config, chosen, seed
        self._process_index, self._process_count = process_index, process_count

        def rows(examples):
            if splits.kind == "documents":
                return WindowRows(examples, tokenizer, chosen.capacity["text"])
            return ExampleRows(examples, tokenizer, chosen.capacity)

        self._train = rows(splits.train)
        self._evals = {name: rows(examples) for name, examples in splits.evals.items()}
        self.tokenizer = tokenizer
        self.labels = splits.labels
        self.image_shape = splits.train[0]["image"].shape if splits.kind == "images" else None
        self.digest = content_digest(
            [str(VERSION), splits.digest, tokenizer.digest if tokenizer else ""]
        )
        self.description: dict[str, Any] = {
            "source": config.source,
            **splits.description,
            "train_rows": len(self._train),
            "eval_rows": {name: len(r) for name, r in self._evals.items()},
            "eval_rows_truncated": {name: r.truncated() for name, r in self._evals.items()},
            "digest": self.digest,
        }

    @property
    def eval_names(self) -> tuple[str, ...]:
        return tuple(self._evals)

    def train_batch(self, n: int) -> Batch:
        """This process's rows of the n-th batch."""
        size = self._config.batch_size
        share = _share_of(size, self._process_index, self._process_count, "data.batch_size")
        positions = n * size + np.arange(share.start, share.stop)
        indices = shuffled(positions, len(self._train), self._seed)
        return _stacked(
            [
                self._fields(self._train, index, self._seed, randomness.TRAIN_ROW, position)
                for index, position in zip(indices.tolist(), positions.tolist(), strict=True)
            ]
        )

    def train_iterator(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches start, start + 1, ... stop - 1, built ahead in a thread."""
        ahead = self._config.prefetch
        options = grain.ReadOptions(num_threads=min(1, ahead), prefetch_buffer_size=ahead)
        numbers = grain.MapDataset.range(start, stop)
        return iter(numbers.map(self.train_batch).to_iter_dataset(options))

    def eval_batches(self, name: str, batch_size: int, max_batches: int = 0) -> list[Batch]:
        """This process's rows of each batch of a held-out set, in the set's own order.

        The last batch is filled up with copies of a real row whose weights are all 0.
        """
        share = _share_of(batch_size, self._process_index, self._process_count, "eval.batch_size")
        count = self._eval_count(name, batch_size, max_batches)
        return [
            _stacked([self._eval_fields(name, first + i, count) for i in share])
            for first in range(0, count, batch_size)
        ]

    def eval_examples(self, name: str, count: int) -> list[Example]:
        """The first examples of a held-out set as text, in the order of its batches' rows."""
        rows = self._evals[name]
        return [rows.example(index) for index in range(min(count, len(rows)))]

    def eval_bytes(self, name: str, batch_size: int, max_batches: int = 0) -> int:
        """Bytes of text that the targets of these batches spell, over all processes.

        Total loss in nats / ln 2 / this number = bits per byte, whatever the tokenizer.
        """
        count = self._eval_count(name, batch_size, max_batches)
        rows = (self._eval_fields(name, index, count) for index in range(count))
        spelt = (row["targets"][row["weights"] > 0] for row in rows)
        return sum(int(self.tokenizer.token_bytes[ids].sum()) for ids in spelt)

    def _eval_count(self, name: str, batch_size: int, max_batches: int) -> int:
        rows = len(self._evals[name])
        return min(rows, batch_size * max_batches) if max_batches else rows

    def _eval_fields(self, name: str, index: int, count: int) -> Fields:
        rows, real = self._evals[name], index < count
        index = index if real else 0
        fields = self._fields(rows, index, EVAL_SEED, randomness.EVAL_ROW, index)
        return fields if real else {**fields, "weights": np.zeros_like(fields["weights"])}

    def _fields(
        self, rows: ExampleRows | WindowRows, index: int, seed: int, purpose: int, stream: int
    ) -> Fields:
        rng = randomness.generator(seed, purpose, stream)
        row = rows.row(index)
        if self._task.needs_other_row:
            other = (index + int(rng.integers(1, max(2, len(rows))))) % len(rows)
            row["other"] = rows.row(other)["text"]
        return self._task.fields(row, rng)


def _share_of(batch_size: int, process_index: int, process_count: int, key: str) -> range:
    """The rows of a batch that this process builds."""
    if batch_size % process_count:
        raise ConfigError(
            f"{key}={batch_size} cannot be shared evenly by {process_count} processes; "
            f"choose a multiple of {process_count}"
        )
    share = batch_size // process_count
    return range(process_index * share, (process_index + 1) * share)


def _stacked(rows: list[Fields]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
