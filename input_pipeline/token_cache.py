"""The cache under data.cache_dir: tokenized text, packing plans and trained tokenizers."""

import shutil
import typing
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from experiment.schema import ConfigError
from input_pipeline import packing
from input_pipeline.bucket_cache import BucketCache, LocalCache
from input_pipeline.config import DataConfig, tokenizer_problems
from input_pipeline.object_copy import local_tokenizer
from input_pipeline.packing import Plan
from input_pipeline.preparation import ChunkMaker, PreparationJob, in_threads, prepare, tokenized
from input_pipeline.sources.base import (
    PATCHED,
    Example,
    LazyList,
    Splits,
    content_digest,
    readable_examples,
)
from input_pipeline.token_table import FeatureSpec, LazyTokenTable, TokenTable
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import with_chat_template
from input_pipeline.tokenizers.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from input_pipeline.tokenizers.train_vocabulary import (
    VERSION,
    TokenizerKind,
    spelling_problem,
    train_tokenizer,
)
from storage.object_store import is_remote

TEXT_FIELDS = ("source", "target", "text", "text_pair")
CHAT_FIELDS = ("messages", "prompt", "chosen", "rejected")
DEFAULT_DIRECTORY = "~/.cache/backbone"
TRAINABLE = typing.get_args(TokenizerKind)
SAMPLE_EXAMPLES, SAMPLE_CHARACTERS = 100, 2000  # per source of a mixture; per text
TRAINING_CHARACTERS = 100_000_000  # a tokenizer learns little from more text


def cache_directory(data: DataConfig) -> Path:
    """Where tokenized data is on this disk: data.cache_dir, or the default.

    The default also has the copies of a data.cache_dir in a bucket. Names are digests of contents,
    so several caches can share it.
    """
    return cache_directory_of("" if is_remote(data.cache_dir) else data.cache_dir)


def cache_directory_of(cache_dir: str) -> Path:
    """The directory for a value of data.cache_dir; "" means the default."""
    return Path(cache_dir or DEFAULT_DIRECTORY).expanduser()


class TokenCache:
    """Trains tokenizers, tokenizes text and plans packing, or finds the results in the cache.

    `make_chunks` says how text is tokenized: in threads, or by Beam.
    """

    def __init__(self, data: DataConfig, make_chunks: ChunkMaker = in_threads):
        self._data, self._make_chunks = data, make_chunks
        self.directory = cache_directory(data)
        is_in_bucket = is_remote(data.cache_dir)
        self._shared = BucketCache(data.cache_dir) if is_in_bucket else LocalCache()
        self.tables: list[tuple[str, TokenTable]] = []  # (split, table) of every `table` call

    def tokenizer(self, splits: Sequence[Splits]) -> Tokenizer | None:
        """The config's tokenizer, trained on `splits` if need be; None for images."""
        name, size = self._data.tokenizer, self._data.tokenizer_size
        if splits[0].kind in PATCHED:
            return None
        if name == "byte":
            return ByteTokenizer()
        if name not in TRAINABLE:
            name = local_tokenizer("data.tokenizer", name, self.directory)
            if problems := list(tokenizer_problems(name)):
                raise ConfigError(problems)
            tokenizer = open_tokenizer(name)
            # Other kinds of examples do without, so that their digests stay as they were.
            is_chat = splits[0].kind in ("chats", "preferences")
            return with_chat_template(tokenizer, name) if is_chat else tokenizer
        settings = f"{VERSION} {name} {size}{' lowercase' if self._data.lowercase else ''}"
        options = {"separator": self._data.source_options.separator} if name == "item" else {}
        settings += f" {options}" if options else ""
        key = content_digest([settings, *(each.digest for each in splits)])[:32]
        directory = self.directory / f"tokenizer-{key}"

        def train(path: Path) -> None:
            texts, lowercase = _texts(splits), self._data.lowercase
            train_tokenizer(name, texts, size, lowercase=lowercase, **options).save(path)

        self._shared.make(directory, train)
        tokenizer = load_tokenizer(directory)
        if name == "item":
            if tokenizer.vocab_size == size:
                logging.warning("data.tokenizer_size=%d is full; rarer items are unknown", size)
        elif problem := spelling_problem(name, tokenizer, size, _sample(splits)):
            logging.warning("%s", problem)
        return tokenizer

    def table(
        self,
        splits: Splits,
        split: str,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        features: FeatureSpec,
        storage: str,
    ) -> TokenTable | LazyTokenTable:
        """The examples of a split as ids. `storage` is `Splits.storage`."""
        match storage:
            case "none":
                return LazyTokenTable(examples, tokenizer, features)
            case "memory":
                return tokenized(examples, range(len(examples)), tokenizer, features)
        table = prepare(
            PreparationJob(splits.digest, split, examples, tokenizer, features),
            self.directory,
            make_chunks=self._make_chunks,
            max_bad_records=self._data.max_bad_records,
            verify=self._data.verify_cache,
            shared=self._shared,
        )
        self.tables.append((split, table))
        return table

    @property
    def place(self) -> str:
        """data.cache_dir, as messages call it."""
        return self._shared.url or str(self.directory)

    def plan(self, sizes: np.ndarray, capacities: Sequence[int]) -> Plan:
        """A packing plan; arguments as for `packing.plan`."""
        sizes = np.ascontiguousarray(sizes, np.int64)
        key = content_digest([str(packing.VERSION), sizes.data, str(list(capacities))])[:32]
        directory = self.directory / f"plan-{key}"
        if (plan := _read_plan(directory)) is not None:
            return plan
        shutil.rmtree(directory, ignore_errors=True)  # the plan is missing or damaged

        def make(path: Path) -> None:
            np.savez(path / "plan", **packing.plan(sizes, capacities)._asdict())

        self._shared.make(directory, make)
        return _read_plan(directory)


def _read_plan(directory: Path) -> Plan | None:
    try:
        with (directory / "plan.npz").open("rb") as file, np.load(file) as saved:
            return Plan(**saved)
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile):
        return None


def _texts(splits: Sequence[Splits]) -> Iterator[str]:
    """The texts that a tokenizer is trained on; bad records are skipped."""
    for each in splits:
        for example in readable_examples(_spread(each.train, TRAINING_CHARACTERS // len(splits))):
            yield from _texts_of(example)


def _sample(splits: Sequence[Splits]) -> Iterator[str]:
    """A small sample of the text of all sources, to measure a tokenizer on."""
    for each in splits:
        numbers = range(0, len(each.train), max(1, len(each.train) // SAMPLE_EXAMPLES))
        for example in readable_examples(LazyList(each.train.__getitem__, numbers)):
            yield from (text[:SAMPLE_CHARACTERS] for text in _texts_of(example))


def _texts_of(example: Example) -> list[str]:
    messages = [message for field in CHAT_FIELDS for message in example.get(field, ())]
    return [example[field] for field in TEXT_FIELDS if field in example] + [
        message["content"] for message in messages
    ]


def _spread(examples: Sequence[Example], characters: int) -> Sequence[Example]:
    """Evenly spaced examples with about `characters` characters; files may be sorted."""
    step = -(-len(examples) // 1000)
    some = list(readable_examples(LazyList(examples.__getitem__, range(0, len(examples), step))))
    size = sum(len(text) for example in some for text in _texts_of(example)) / max(1, len(some))
    step = max(1, round(size * len(examples) / characters))
    return LazyList(examples.__getitem__, range(0, len(examples), step))
