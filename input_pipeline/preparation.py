"""Tokenizes a split once, chunk by chunk, into a table that later runs only map into memory.

    cache_dir/<key>.partial/0000000.npz ...  finished chunks: what an interrupted run goes on from
    cache_dir/<key>/                         the whole table, moved into place when it is complete

The key is a digest of everything the ids depend on, so whatever changes makes a new table. A
chunk is written under another name first, and always has the same content, so two processes that
prepare the same table at once only do some work twice. Damage is noticed by the sizes of a table's
files and the checksums of a chunk's, and mended by making them again.
"""

import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from tqdm import tqdm

from input_pipeline.source import BadRecordError, Example, content_digest
from input_pipeline.table import Form, Table, open_table, table_of, write_table
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.whole import make_directory, make_whole
from schema import ConfigError

# To be raised when the same source and tokenizer come to give another table.
VERSION = 2
CHUNK = 1024  # examples
# While one chunk is tokenized, on all cores, another can be read.
THREADS = 2
# A full stop with what may close a quotation behind it, or the end of a line.
_SENTENCE_END = re.compile(r"[.!?…][\"'»”’)\]]*(?=\s)|[。！？।][」』”]*|\n")


def table_key(source_digest: str, split: str, tokenizer: Tokenizer, form: Form) -> str:
    parts = [str(VERSION), source_digest, split, tokenizer.digest, repr(form), str(CHUNK)]
    return content_digest(parts)[:32]


def prepare(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    form: Form,
    cache_dir: Path,
    key: str,
    *,
    label: str,
    max_bad_records: int = 0,
) -> Table:
    """The table of a split: found in the cache, or made there first."""
    directory, partial = cache_dir / key, cache_dir / f"{key}.partial"
    while (table := opened(directory)) is None:
        try:
            make_chunks(examples, tokenizer, form, partial, label, max_bad_records)
            chunks = (read_chunk(partial, n) for n in range(chunk_count(examples)))
            make_whole(directory, functools.partial(write_table, chunks=chunks))
        except FileNotFoundError:
            # Another process has finished the table and cleared the chunks away.
            if not directory.exists():
                raise
        shutil.rmtree(partial, ignore_errors=True)
    refuse_bad_records(table.bad, max_bad_records)
    for message in table.bad:
        logging.warning("skipped: %s", message)
    return table


def opened(directory: Path) -> Table | None:
    """The table that is there, if there is one; a damaged one is removed."""
    if not directory.exists():
        return None
    try:
        return open_table(directory)
    except (OSError, ValueError, LookupError, TypeError) as error:
        logging.warning("prepared data is damaged and will be made again: %s", error)
        with contextlib.suppress(FileNotFoundError):  # another process may see to it, too
            shutil.rmtree(directory)
        return None


def refuse_bad_records(bad: Sequence[str], allowed: int) -> None:
    if len(bad) > allowed:
        nth = f", bad record {allowed + 1} after {bad[0]}" if allowed else ""
        raise ConfigError(
            f"{bad[allowed]}{nth}; mend it, or raise data.max_bad_records={allowed} "
            "to skip such records"
        )


def chunk_count(examples: Sequence[Example]) -> int:
    return -(-len(examples) // CHUNK)


def make_chunks(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    form: Form,
    partial: Path,
    label: str,
    max_bad_records: int,
) -> None:
    """All chunks that are not there yet."""
    make_directory(partial)

    def bad_in(number: int) -> list[str]:
        try:
            return read_chunk(partial, number).bad
        except (OSError, EOFError, ValueError, LookupError, zipfile.BadZipFile):
            made = tokenized(examples, chunk(examples, number), tokenizer, form)
            write_chunk(partial, number, made)
            return made.bad

    bad: list[str] = []
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)
    try:
        found = pool.map(bad_in, range(chunk_count(examples)))
        for more in tqdm(found, label, chunk_count(examples), unit="chunk", disable=None):
            bad += more
            refuse_bad_records(bad, max_bad_records)
    finally:
        pool.shutdown(cancel_futures=True)


def chunk(examples: Sequence[Example], number: int) -> range:
    return range(number * CHUNK, min((number + 1) * CHUNK, len(examples)))


def tokenized(
    examples: Sequence[Example], numbers: Iterable[int], tokenizer: Tokenizer, form: Form
) -> Table:
    """The table of these examples. Whoever makes it makes the same."""
    kept, origins, bad = [], [], []
    for index in numbers:
        try:
            example = examples[index]
        except BadRecordError as error:
            bad.append(str(error))
            continue
        entries = list(sentences(example)) if form.sentences else [example]
        kept += entries
        origins += [index] * len(entries)
    return table_of(kept, tokenizer, form, origins, bad)


def sentences(document: Example) -> Iterator[Example]:
    text = document["text"]
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    found = [text[start:stop].strip() for start, stop in itertools.pairwise(cuts)]
    for position, sentence in enumerate(filter(None, found)):
        yield {"text": sentence, "first": int(position == 0)}


def chunk_path(partial: Path, number: int) -> Path:
    return partial / f"{number:07d}.npz"


def write_chunk(partial: Path, number: int, table: Table) -> None:
    bad = np.frombuffer(json.dumps(table.bad).encode(), np.uint8)
    with tempfile.NamedTemporaryFile(dir=partial, suffix=".writing", delete=False) as file:
        np.savez(file, **table.arrays, bad=bad)
    os.replace(file.name, chunk_path(partial, number))


def read_chunk(partial: Path, number: int) -> Table:
    # Opened here: NumPy would leave a damaged file open.
    with chunk_path(partial, number).open("rb") as file, np.load(file) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return Table(arrays, json.loads(arrays.pop("bad").tobytes()))
