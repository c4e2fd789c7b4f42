"""Tokenizes a split once, chunk by chunk, into a table that later runs map into memory.

    cache_dir/<key>.partial/0000000.npz ...  finished chunks; an interrupted run continues from them
    cache_dir/<key>/                         the complete table, moved into place at the end

The key is a digest of everything that the ids depend on. Chunks are written under a temporary name
and are deterministic, so two processes that prepare the same table only do some work twice. Digests
(tables) and checksums (chunks) reveal damage; damaged files are made again.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from tqdm import tqdm

from experiment.schema import ConfigError
from input_pipeline.atomic_directory import make_directory_atomically
from input_pipeline.bucket_cache import LocalCache
from input_pipeline.sources.base import BadRecordError, Example, content_digest
from input_pipeline.token_table import FeatureSpec, TokenTable, open_table, table_of, write_table
from input_pipeline.tokenizers.tokenizer import Tokenizer
from storage.object_store import is_remote, read_object, write_object

# Raise this when the same source and tokenizer give another table than before.
VERSION = 2
CHUNK = 1024  # examples
# One chunk is read while another is tokenized on all cores.
THREADS = 2
# The end of a sentence, with closing quotes and brackets, or the end of a line.
_SENTENCE_END = re.compile(r"[.!?…][\"'»”’)\]]*(?=\s)|[。！？।][」』”]*|\n")


@dataclasses.dataclass(frozen=True)
class PreparationJob:
    """A split to tokenize."""

    source_digest: str
    split: str
    examples: Sequence[Example]
    tokenizer: Tokenizer
    features: FeatureSpec

    @property
    def key(self) -> str:
        parts = [str(VERSION), self.source_digest, self.split, self.tokenizer.digest]
        return content_digest([*parts, self.features.cache_key, str(CHUNK)])[:32]

    @property
    def chunk_count(self) -> int:
        return -(-len(self.examples) // CHUNK)


# Called with a job and a directory. Makes all chunks in that directory, and yields for each chunk,
# in order, the problems of the bad records that it leaves out.
ChunkMaker = Callable[[PreparationJob, Path], Iterator[list[str]]]


def in_threads(job: PreparationJob, partial: Path) -> Iterator[list[str]]:
    """Makes chunks in threads: the tokenizers library releases the GIL."""
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    try:
        yield from pool.map(functools.partial(make_chunk, job, partial), range(job.chunk_count))
    finally:
        pool.shutdown(cancel_futures=True)


def prepare(
    job: PreparationJob,
    cache_dir: Path,
    *,
    make_chunks: ChunkMaker = in_threads,
    max_bad_records: int = 0,
    verify: bool = True,
    shared: LocalCache = LocalCache(),  # noqa: B008 - it has no state
) -> TokenTable:
    """Opens the table of a split in the cache; makes it first if it is missing.

    `verify` compares a table that is there with its digests, and makes it again if it differs.
    `shared`: what else the cache is made of, if it is in a bucket. Raises ConfigError if more than
    `max_bad_records` records cannot be read.
    """
    directory, partial, is_fetched = cache_dir / job.key, None, None
    while (table := opened(directory, verify=verify)) is None:
        if is_fetched is None:
            is_fetched = shared.fetch(directory)
            if is_fetched:
                continue
        if is_fetched:  # and damaged
            shared.discard(directory)
            is_fetched = False
        try:
            partial = shared.partial(directory)
            # Closing the iterator stops its threads if too many records are bad.
            with contextlib.closing(make_chunks(job, partial)) as made:
                _refuse_bad_chunks(job, made, max_bad_records)
            chunks = (read_chunk(partial, number) for number in range(job.chunk_count))
            make_directory_atomically(directory, functools.partial(write_table, chunks=chunks))
        except FileNotFoundError:
            # Another process has finished the table and removed the chunks.
            if not (directory.exists() or shared.fetch(directory)):
                raise
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir={shared.url or cache_dir} cannot be written "
                f"({error.strerror or error}); free some space there, or choose another"
            ) from error
    shared.publish(directory)
    if partial is not None:
        shared.remove(partial)
    refuse_bad_records(table.bad, max_bad_records)
    for message in table.bad:
        logging.warning("skipped: %s", message)
    return table


def _refuse_bad_chunks(
    job: PreparationJob, made: Iterator[list[str]], max_bad_records: int
) -> None:
    """Consumes the chunks as they are made; raises as soon as too many records are bad."""
    bad: list[str] = []
    label = f"tokenizing {job.split}"
    for more in tqdm(made, label, job.chunk_count, unit="chunk", disable=None):
        bad += more
        refuse_bad_records(bad, max_bad_records)


def opened(directory: Path, *, verify: bool = True) -> TokenTable | None:
    """The table in a directory, or None; a damaged table is removed."""
    if not directory.exists():
        return None
    try:
        return open_table(directory, verify=verify)
    except (OSError, ValueError, LookupError, TypeError) as error:
        logging.warning("prepared data is damaged and will be made again: %s", error)
        with contextlib.suppress(FileNotFoundError):  # another process may remove it, too
            shutil.rmtree(directory)
        return None


def refuse_bad_records(bad: Sequence[str], allowed: int) -> None:
    """Raises ConfigError if more than `allowed` records are bad; `bad` are their problems."""
    if len(bad) > allowed:
        nth = f", bad record {allowed + 1} after {bad[0]}" if allowed else ""
        raise ConfigError(
            f"{bad[allowed]}{nth}; mend it, or raise data.max_bad_records (now {allowed}) "
            "to skip such records"
        )


def make_chunk(job: PreparationJob, partial: Path, number: int) -> list[str]:
    """Makes a chunk unless it exists; returns the problems of its bad records."""
    try:
        return read_chunk(partial, number).bad
    except (OSError, EOFError, ValueError, LookupError, zipfile.BadZipFile):
        numbers = range(number * CHUNK, min((number + 1) * CHUNK, len(job.examples)))
        made = tokenized(job.examples, numbers, job.tokenizer, job.features)
        write_chunk(partial, number, made)
        return made.bad


def tokenized(
    examples: Sequence[Example], numbers: Iterable[int], tokenizer: Tokenizer, features: FeatureSpec
) -> TokenTable:
    """Tokenizes the examples with these indices, without bad records; deterministic."""
    entries, example_indices, bad = [], [], []
    for index in numbers:
        try:
            example = examples[index]
            if features.encoder:
                example = features.encoder(example)  # or several entries of the table
        except BadRecordError as error:
            bad.append(str(error))
            continue
        added = example if isinstance(example, list) else [example]
        if features.sentences:
            added = list(sentences(example))
        entries += added
        example_indices += [index] * len(added)
    return table_of(entries, tokenizer, features, example_indices, bad)


def sentences(document: Example) -> Iterator[Example]:
    """Splits a document into sentences; `first` is 1 for the first of them and 0 for others."""
    text = document["text"]
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    found = [text[start:stop].strip() for start, stop in itertools.pairwise(cuts)]
    for position, sentence in enumerate(filter(None, found)):
        yield {"text": sentence, "first": int(position == 0)}


def chunk_path(partial: Path, number: int) -> Path:
    """The file of a chunk in the directory of an unfinished preparation."""
    return partial / f"{number:07d}.npz"


def write_chunk(partial: Path, number: int, table: TokenTable) -> None:
    """Writes a chunk, which appears at once and complete."""
    bad = np.frombuffer(json.dumps(table.bad).encode(), np.uint8)
    if is_remote(partial):
        content = io.BytesIO()
        np.savez(content, **table.arrays, bad=bad)
        write_object(chunk_path(partial, number), content.getvalue())
        return
    with tempfile.NamedTemporaryFile(dir=partial, suffix=".writing", delete=False) as file:
        np.savez(file, **table.arrays, bad=bad)
    os.replace(file.name, chunk_path(partial, number))


def read_chunk(partial: Path, number: int) -> TokenTable:
    """Reads a chunk."""
    path = chunk_path(partial, number)
    # Opened here, because NumPy leaves a damaged file open.
    opened = io.BytesIO(read_object(path)) if is_remote(path) else path.open("rb")
    with opened as file, np.load(file) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return TokenTable(arrays, json.loads(arrays.pop("bad").tobytes()))
