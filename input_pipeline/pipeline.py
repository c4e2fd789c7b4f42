"""Batches by number: batch n is a function of the config, the seed and n.

    source -> tokenizer -> table -> rows -> order -> objective -> layout -> batch

Row r of a run is row r % batch_size of batch r // batch_size. It is the r-th row of the order; the
objective processes it with random stream r. Each process builds only its share of a batch; the
shares of all processes, in order, are the batch that a single process would build.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from experiment.schema import ConfigError
from input_pipeline import packing, preparation, randomness
from input_pipeline.augmentation import refuse_image_keys
from input_pipeline.class_balance import class_weights
from input_pipeline.config import DataConfig
from input_pipeline.object_copy import with_local_path
from input_pipeline.objectives.objective import Augment, Masking, TaskSpec
from input_pipeline.order import BySize, ByWeight, InBuckets, Order
from input_pipeline.row_builder import RowBuilder, Stream
from input_pipeline.row_layout import RowLayout
from input_pipeline.rows import Fields, Rows
from input_pipeline.shuffle import sampled
from input_pipeline.sources import registry
from input_pipeline.sources.base import PATCHED, SIGNALS, Example, LazyList, content_digest
from input_pipeline.task_spec import choose_task_spec
from input_pipeline.token_cache import TokenCache, cache_directory
from input_pipeline.token_table import EXAMPLE_INDEX
from input_pipeline.tokenizers.tokenizer import Tokenizer

# Raise this when the same config and source give other batches than before. It is part of the
# digest, so that no run continues on other data.
VERSION = 2
# Evaluation data is masked in the same way in every run.
EVAL_SEED = 0
# Worker processes return arrays of at least this size in shared memory, smaller ones by copy.
MIN_SHARED_BYTES = 2**20

Batch = dict[str, np.ndarray]


def load(
    data: DataConfig,
    *,
    objective: str,
    masking: Masking,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    cache: TokenCache | None = None,
    tokenizer: Tokenizer | None = None,
    to_train: bool = True,
    evaluate_on_train: bool = False,
) -> "Data":
    """Opens the data of a config; raises ConfigError if it does not suit the objective.

    masking: how objectives mask tokens. cache: makes and stores tokenized text; default:
    TokenCache(data). tokenizer: a trained model's tokenizer, used in place of the config's.
    to_train: False prepares the evaluation sets only. evaluate_on_train: the training examples
    become the evaluation set, without augmentation, packing or dropping.
    """
    _share_of(data.batch_size, process_index, process_count, "data.batch_size")
    data = with_local_path(data, cache_directory(data))
    components = registry.components(data)
    if evaluate_on_train:
        components = [
            dataclasses.replace(each, splits=each.splits.scored_on_train(data.train_split))
            for each in components
        ]
    cache = cache or TokenCache(data)
    splits = components[0].splits
    if tokenizer is None:
        tokenizer = cache.tokenizer([each.splits for each in components])
    task = choose_task_spec(
        objective, splits.kind, data, tokenizer, masking, text_pairs=splits.text_pairs
    )
    if splits.kind == "images":
        refuse_image_keys(data, splits.train[0]["image"].shape)
    row_builder = RowBuilder(data, tokenizer, task, cache)
    streams = [
        dataclasses.replace(stream, name=each.name or data.source)
        for each in components
        if to_train
        for stream in row_builder.streams(each.splits, each.weight)
    ]
    return Data(
        data, components, tokenizer, task, row_builder, streams, seed, process_index, process_count
    )


class Data:
    """The training and evaluation batches of one objective. Batches hold this process's rows."""

    def __init__(
        self,
        config: DataConfig,
        components: Sequence[registry.Component],
        tokenizer: Tokenizer | None,
        task: TaskSpec,
        row_builder: RowBuilder,
        streams: Sequence[Stream],
        seed: int,
        process_index: int,
        process_count: int,
    ):
        self._config, self._task, self._seed = config, task, seed
        self._process_index, self._process_count = process_index, process_count
        self._streams = streams
        self._class_weights_c = None
        if streams and config.weighs_classes:
            self._class_weights_c = class_weights(
                config, components[0].splits.labels, row_builder.class_counts
            )
        self._order = _order(config, streams, seed) if streams else None
        self._evals: dict[str, tuple[Rows, Sequence[Example]]] = {}
        self._named_evals: dict[str, list[str]] = {}
        for each in components:
            for name, examples in each.splits.evals.items():
                full_name = registry.name_of("_".join(filter(None, (name, each.name))))
                self._evals[full_name] = row_builder.eval_rows(each.splits, name), examples
                if name in each.splits.named_evals:
                    self._named_evals.setdefault(name, []).append(full_name)
        self._eval_layout = task.layout(config.length, config.encoder_length, packed=False)
        self._kind = components[0].splits.kind
        self.tokenizer = tokenizer
        self.labels = components[0].splits.labels
        self.text_pairs = components[0].splits.text_pairs
        self.image_shape = (
            components[0].splits.train[0]["image"].shape if self._kind == "images" else None
        )
        self.signal_shape = (
            components[0].splits.train[0]["signal"].shape if self._kind in SIGNALS else None
        )
        self.horizon = len(components[0].splits.train[0]["future"]) if self._kind == "series" else 0
        self.mean_and_std = components[0].splits.mean_and_std
        self.tokenizer_digest = tokenizer.digest if tokenizer else ""
        versions = f"{VERSION} {preparation.VERSION} {packing.VERSION}"
        self.digest = content_digest([versions, *(each.splits.digest for each in components)])
        self.description: dict[str, Any] = {
            "source": config.source,
            "contents": {each.name: dict(each.splits.description) for each in components},
            "train_rows": sum(len(stream.rows) for stream in self._streams),
            "batch_size": config.batch_size,
            "sorted_by_length": config.sorts_by_length,
            "eval_rows": {name: len(rows) for name, (rows, _) in self._evals.items()},
            "too_long": dict(row_builder.too_long),
            "over_long": [dataclasses.asdict(each) for each in row_builder.over_long.values()],
            "bad_records": dict(row_builder.bad_records),
            **({"padded_to": row_builder.bucket_lengths} if row_builder.bucket_lengths else {}),
            "tokenizer_digest": self.tokenizer_digest,
            "digest": self.digest,
        }

    @property
    def eval_names(self) -> tuple[str, ...]:
        return tuple(self._evals)

    def eval_names_of_split(self, split: str) -> tuple[str, ...]:
        """The evaluation sets of a split; empty if no source names a split so."""
        return tuple(self._named_evals.get(split, ()))

    def bucket_of(self, batch: Batch) -> tuple[int, int] | None:
        """The number of a training batch's length bucket, counted from 1, and how many there are.

        Returns None if the config sets no buckets.
        """
        if not self._config.sorts_by_length:
            return None
        keys = {"inputs": "length", "encoder_inputs": "encoder_length"}
        keys = {name: key for name, key in keys.items() if name in batch}
        buckets = [tuple(getattr(s.layout, key) for key in keys.values()) for s in self._streams]
        return 1 + buckets.index(tuple(batch[name].shape[1] for name in keys)), len(buckets)

    def train_batch(self, n: int) -> Batch:
        """This process's rows of batch n."""
        size = self._config.batch_size
        share = _share_of(size, self._process_index, self._process_count, "data.batch_size")
        inside = np.arange(share.start, share.stop)
        columns = *self._order.batch(n, inside), n * size + inside
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return _stacked([self._train_fields(*row) for row in rows])

    def train_ids(self, n: int) -> list[str]:
        """The examples in this process's rows of batch n, as source:index."""
        size = self._config.batch_size
        share = _share_of(size, self._process_index, self._process_count, "data.batch_size")
        parts, indices, real = self._order.batch(n, np.arange(share.start, share.stop))
        return [
            f"{self._streams[part].name}:{example}"
            for part, index, counts in zip(parts, indices, real, strict=True)
            if counts
            for example in self._streams[part].rows.example_indices(int(index))
        ]

    def train_iterator(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches start, ..., stop - 1, built ahead by a thread or by worker processes."""
        ahead, workers = self._config.prefetch, self._config.workers
        numbers = grain.MapDataset.range(start, stop).map(self.train_batch)
        if workers:
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()  # grain reads its own flags
            options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=max(1, ahead))
            processes = grain.MultiprocessingOptions(workers, per_worker_buffer_size=max(1, ahead))
            batches = grain.experimental.WithOptionsIterDataset(
                numbers.to_iter_dataset(options),
                grain.experimental.DatasetOptions(min_shm_size=MIN_SHARED_BYTES),
            )
            return iter(batches.mp_prefetch(processes))
        options = grain.ReadOptions(num_threads=min(1, ahead), prefetch_buffer_size=ahead)
        return iter(numbers.to_iter_dataset(options))

    def __getstate__(self):
        """Leaves out the evaluation sets: worker processes build training batches only."""
        return {**self.__dict__, "_evals": {}}

    def eval_batches(self, name: str, batch_size: int, max_batches: int = 0) -> Sequence[Batch]:
        """This process's rows of each batch of an evaluation set, built on access.

        The rows come in a fixed pseudo-random order, so the first `max_batches` batches (0: all)
        are a fair sample even of a sorted set. The last batch is filled up with copies of a row,
        with weights 0.
        """
        share = _share_of(batch_size, self._process_index, self._process_count, "eval.batch_size")
        indices = self._eval_indices(name, batch_size * max_batches)

        def batch(first: int) -> Batch:
            return _stacked([self._eval_fields(name, indices, first + i) for i in share])

        return LazyList(batch, range(0, len(indices), batch_size))

    def eval_examples(self, name: str, count: int) -> list[Example]:
        """The first `count` examples of an evaluation set, in the order of `eval_batches`."""
        rows, examples = self._evals[name]
        if not count:
            return []
        first = self._eval_indices(name, count).tolist()
        if self._kind in PATCHED:
            return [examples[index] for index in first]
        parts = [rows.parts(index)[0] for index in first]
        if self._kind == "documents":
            texts = [part.get("text", part.get("sentences")) for part in parts]
            return [{"text": self.tokenizer.decode(np.hstack(text))} for text in texts]
        return [examples[part[EXAMPLE_INDEX]] for part in parts]

    def eval_bytes(self, name: str, batch_size: int, max_batches: int = 0) -> int:
        """Bytes of the text that the targets of these batches encode, over all processes; 0: none.

        Total loss in nats / ln 2 / this number is the bits per byte. They can be compared between
        tokenizers, even if a tokenizer drops parts of the text.
        """
        if self._kind == "chats":
            return 0  # template text is not predicted, and special tokens have no bytes
        indices = np.sort(self._eval_indices(name, batch_size * max_batches)).tolist()
        rows, examples = self._evals[name]
        if self._kind == "pairs":
            parts = (rows.parts(index)[0] for index in indices)
            covered = (
                (examples[part[EXAMPLE_INDEX]]["target"], len(part["target"])) for part in parts
            )
            tokenizer = self.tokenizer.target
            return sum(int(tokenizer.byte_sizes(text)[:n].sum()) for text, n in covered)
        # The indices are sorted, so neighbouring rows share a document.
        document_sizes = functools.lru_cache(maxsize=1)(
            lambda example: self._document_sizes(examples[example])
        )
        total = 0
        for index in indices:
            pieces = [document_sizes(example)[a:b] for example, a, b in rows.pieces(index)]
            sizes = np.concatenate(pieces)
            predicted = self._eval_row(name, index)["weights"] > 0
            # If bos begins a row, its first target is the text's first id; else it is the second.
            first = len(self.tokenizer.causal_prefix) - 1
            counts = np.append(False, predicted) if first < 0 else predicted[first:]
            total += int(sizes[counts[: len(sizes)]].sum())
        return total

    def _document_sizes(self, document: Example) -> np.ndarray:
        """The bytes that each id of a document covers; eos covers the remaining bytes."""
        sizes = self.tokenizer.byte_sizes(document["text"])
        if not document.get("ends", True):
            return sizes
        return np.append(sizes, len(document["text"].encode()) - sizes.sum())

    def _eval_indices(self, name: str, most: int) -> np.ndarray:
        """Indices of the first `most` rows of an evaluation set, in batch order; 0: all rows."""
        rows = len(self._evals[name][0])
        return sampled(min(rows, most) if most else rows, rows)

    def _train_fields(self, part: int, index: int, real: bool, place: int) -> Fields:
        rng = randomness.generator(self._seed, randomness.TRAIN_ROW, place)
        stream = self._streams[part]
        fields = self._fields(stream.rows, index, rng, stream.layout, self._task.augment)
        if self._class_weights_c is not None:
            fields["weights"] = fields["weights"] * self._class_weights_c[fields["labels"]]
        return fields if real else _without_weight(fields)

    def _eval_fields(self, name: str, indices: np.ndarray, place: int) -> Fields:
        if place < len(indices):
            return self._eval_row(name, int(indices[place]))
        return _without_weight(self._eval_row(name, int(indices[0])))

    def _eval_row(self, name: str, index: int) -> Fields:
        rng = randomness.generator(EVAL_SEED, randomness.EVAL_ROW, index)
        rows = self._evals[name][0]
        fields = self._fields(rows, index, rng, self._eval_layout)
        if self._kind == "pairs":
            # Metrics count a truncated target as wrong.
            fields["target_cut"] = np.int32(rows.is_cut(index, "target"))
        return fields

    def _fields(
        self,
        rows: Rows,
        index: int,
        rng: np.random.Generator,
        layout: RowLayout,
        augment: Augment | None = None,
    ) -> Fields:
        parts = rows.parts(index)
        if self._task.needs_other_row or (augment and augment.needs_other_row):
            other = (index + int(rng.integers(1, max(2, len(rows))))) % len(rows)
            parts = [{**parts[0], "other": rows.parts(other)[0]}]
        if augment:
            parts = [augment(part, rng) for part in parts]
        fields = [self._task.fields(part, rng) for part in parts]
        return fields[0] if self._kind in PATCHED else layout.row(fields)


def _order(config: DataConfig, streams: Sequence[Stream], seed: int) -> Order:
    sizes = [len(stream.rows) for stream in streams]
    if config.sorts_by_length:
        return InBuckets(sizes, config.batch_size, seed)
    if config.mixture:
        return ByWeight(sizes, [stream.weight for stream in streams], config.batch_size, seed)
    return BySize(sizes, config.batch_size, seed)


def _without_weight(fields: Fields) -> Fields:
    """The fields with all weights 0, for a row that only pads a batch."""
    zeros = {name: np.zeros_like(x) for name, x in fields.items() if name.endswith("weights")}
    return {**fields, **zeros}


def _share_of(batch_size: int, process_index: int, process_count: int, key: str) -> range:
    """The row numbers of a batch that this process builds."""
    if batch_size % process_count:
        raise ConfigError(
            f"{key}={batch_size} cannot be shared evenly by {process_count} processes; "
            f"choose a multiple of {process_count}"
        )
    share = batch_size // process_count
    return range(process_index * share, (process_index + 1) * share)


def _stacked(rows: list[Fields]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
