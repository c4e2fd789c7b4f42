"""Tokenized examples: the ids of each text field, concatenated, and where each example ends.

A table is in memory, or in a directory whose files are memory-mapped: then it may be larger than
memory, and sending it to another process costs nothing.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from input_pipeline.sources.base import Example
from input_pipeline.tokenizers.tokenizer import Tokenizer

META = "table.json"
PART_BYTES = 2**25  # per digest
EXAMPLE_INDEX = "origin"  # every entry stores the index of its example in the source


class Encoder(Protocol):
    """Encodes an example; raises BadRecordError if it cannot be encoded."""

    key: str  # what the ids depend on beside the tokenizer

    def __call__(self, example: Example) -> dict[str, Any] | list[dict[str, Any]]:
        """The fields of an entry, or of several entries."""
        ...


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The fields of an example: texts, which are tokenized, and numbers."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    closed: bool = False  # eos follows the text of an example, unless the next one continues it
    sentences: bool = False  # one entry per sentence; `first` marks the first of a document
    # Makes the ids of an example's fields, if that is more than encoding texts one by one.
    encoder: Encoder | None = dataclasses.field(default=None, repr=False)

    @property
    def cache_key(self) -> str:
        """The spec as text for cache keys. The former class name keeps old caches valid."""
        key = repr(self).replace("FeatureSpec", "Form", 1)
        return f"{key} {self.encoder.key}" if self.encoder else key


class TokenTable:
    """One tokenized split: arrays `ids.<field>` and `ends.<field>`, and `number.<name>`."""

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        bad: Sequence[str] = (),
        directory: Path | None = None,
    ):
        self.arrays = arrays
        self.bad = list(bad)  # the problem of each record that was left out
        self.directory = directory  # where its files are; None: in memory
        self._texts = [name[4:] for name in arrays if name.startswith("ids.")]
        self._numbers = [name[7:] for name in arrays if name.startswith("number.")]

    def __len__(self):
        return len(self.arrays[f"number.{EXAMPLE_INDEX}"])

    @property
    def tokens(self) -> int:
        return sum(len(self.stream(field)) for field in self._texts)

    def stream(self, field: str) -> np.ndarray:
        """The ids of all entries of a field, concatenated."""
        return self.arrays[f"ids.{field}"]

    def ends(self, field: str) -> np.ndarray:
        """Where each entry ends in the stream."""
        return self.arrays[f"ends.{field}"]

    def lengths(self, field: str) -> np.ndarray:
        return np.diff(self.ends(field), prepend=0)

    def numbers(self, name: str) -> np.ndarray:
        return self.arrays[f"number.{name}"]

    def ids(self, field: str, index: int) -> np.ndarray:
        ends = self.ends(field)
        return self.stream(field)[ends[index - 1] if index else 0 : ends[index]]

    def entry(self, index: int) -> dict[str, np.ndarray | int]:
        texts = {field: self.ids(field, index) for field in self._texts}
        return texts | {name: self.numbers(name)[index].item() for name in self._numbers}

    def example_index(self, index: int) -> int:
        return int(self.numbers(EXAMPLE_INDEX)[index])

    def __reduce__(self):
        if self.directory is not None:
            return open_table, (self.directory,)
        return TokenTable, (self.arrays, self.bad)


class LazyTokenTable:
    """A split whose examples are generated and tokenized on demand."""

    bad: Sequence[str] = ()

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, features: FeatureSpec):
        self._examples, self._tokenizer, self._features = examples, tokenizer, features

    def __len__(self):
        return len(self._examples)

    def entry(self, index: int) -> dict[str, np.ndarray | int]:
        example = self._examples[index]
        texts = {
            field: _of_field(self._tokenizer, field).encode(example[field])
            for field in self._features.texts
        }
        return (
            texts
            | {name: example[name] for name in self._features.numbers}
            | {EXAMPLE_INDEX: index}
        )

    def example_index(self, index: int) -> int:
        return index


def table_of(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    features: FeatureSpec,
    example_indices: Sequence[int],
    bad: Sequence[str] = (),
) -> TokenTable:
    """Tokenizes examples into a table in memory.

    `example_indices`: their indices in the source. `bad`: problems of the records left out.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    arrays = {}
    for field in features.texts:
        texts = [example[field] for example in examples]
        ids = texts if features.encoder else _of_field(tokenizer, field).encode_batch(texts)
        if features.closed:
            ids = [
                np.append(part, tokenizer.eos_id) if example.get("ends", True) else part
                for part, example in zip(ids, examples, strict=True)
            ]
        arrays[f"ids.{field}"] = np.concatenate([*ids, np.empty(0, dtype)]).astype(dtype)
        arrays[f"ends.{field}"] = np.cumsum([len(part) for part in ids], dtype=np.int64)
    for name in features.numbers:
        values = [example[name] for example in examples]
        is_float = any(isinstance(value, float) for value in values)
        arrays[f"number.{name}"] = np.array(values, np.float32 if is_float else np.int32)
    arrays[f"number.{EXAMPLE_INDEX}"] = np.array(example_indices, np.int64)
    return TokenTable(arrays, bad)


def _of_field(tokenizer: Tokenizer, field: str) -> Tokenizer:
    return tokenizer.target if field == "target" else tokenizer


def write_table(directory: Path, chunks: Iterable[TokenTable]) -> None:
    """Writes chunks as one table to a directory, with one chunk in memory at a time."""
    files, layout, ids_so_far, bad = {}, {}, {}, []
    with contextlib.ExitStack() as opened:
        for chunk in chunks:
            for name, values in chunk.arrays.items():
                if name not in files:
                    files[name] = opened.enter_context((directory / name).open("wb"))
                    layout[name] = {"dtype": values.dtype.str, "size": 0}
                if name.startswith("ends."):
                    values = values + ids_so_far.get(name, 0)
                    ids_so_far[name] = values[-1] if len(values) else ids_so_far.get(name, 0)
                files[name].write(np.ascontiguousarray(values))
                layout[name]["size"] += len(values)
            bad += chunk.bad
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    for name in layout:
        layout[name]["digests"] = _digests(directory / name)
    meta = {"arrays": layout, "bad": bad}
    meta["digest"] = _digest_of_meta(meta)
    (directory / META).write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")


def _digest_of_meta(meta: Mapping[str, Any]) -> str:
    content = {key: value for key, value in meta.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digests(path: Path) -> list[str]:
    """The SHA-256 of each part of a file, computed on all cores."""

    def digest(start: int) -> str:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(PART_BYTES)).hexdigest()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(digest, range(0, path.stat().st_size, PART_BYTES)))


def open_table(directory: Path, *, verify: bool = False) -> TokenTable:
    """The table that `write_table` wrote; raises OSError or ValueError if it is damaged.

    It always compares the sizes of files. `verify` compares their content with the digests too,
    which older tables do not have.
    """
    meta = json.loads((directory / META).read_text())
    if verify and meta.get("digest", "") not in ("", _digest_of_meta(meta)):
        raise ValueError(f"{directory / META} has changed since it was written")
    arrays = {}
    for name, layout in meta["arrays"].items():
        path, dtype = directory / name, np.dtype(layout["dtype"])
        if path.stat().st_size != layout["size"] * dtype.itemsize:
            raise ValueError(f"{path} has {path.stat().st_size} bytes, not the number in {META}")
        if verify and layout.get("digests") not in (None, _digests(path)):
            raise ValueError(f"{path} has changed since it was written")
        # An empty file cannot be mapped. A plain view is faster: slices of np.memmap are slow.
        mapped = np.memmap(path, dtype, "r") if layout["size"] else np.empty(0, dtype)
        arrays[name] = mapped.view(np.ndarray)
    return TokenTable(arrays, meta["bad"], directory)
