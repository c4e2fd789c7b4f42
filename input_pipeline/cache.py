"""What is made once and kept under data.cache_dir: tokenized text, packing plans, tokenizers."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.config import DataConfig
from input_pipeline.packing import Plan
from input_pipeline.preparation import prepare, table_key, tokenized
from input_pipeline.source import BadRecordError, Example, Splits, content_digest
from input_pipeline.table import Form, LazyTable, Table
from input_pipeline.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from input_pipeline.tokenizer_files import open_tokenizer
from input_pipeline.tokenizer_training import TRAINABLE, train_tokenizer

DEFAULT_DIRECTORY = "~/.cache/backbone"
TRAINING_TEXTS = 1_000_000  # a tokenizer learns little more from those that come after


class Cache:
    def __init__(self, data: DataConfig):
        self._data = data
        self.directory = Path(data.cache_dir or DEFAULT_DIRECTORY).expanduser()

    def tokenizer(self, splits: Sequence[Splits]) -> Tokenizer | None:
        name, size = self._data.tokenizer, self._data.tokenizer_size
        if splits[0].kind == "images":
            return None
        if name == "byte":
            return ByteTokenizer()
        if name not in TRAINABLE:
            return open_tokenizer(name)
        key = content_digest([name, str(size), *(each.digest for each in splits)])[:32]
        directory = self.directory / f"tokenizer-{key}"
        if not directory.exists():
            tokenizer = train_tokenizer(name, _texts(splits), size)
            _make_whole(directory, tokenizer.save)
        return load_tokenizer(directory)

    def table(
        self,
        splits: Splits,
        split: str,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        form: Form,
        storage: str,
    ) -> Table | LazyTable:
        """The examples of a split as ids."""
        match storage:
            case "none":
                return LazyTable(examples, tokenizer, form)
            case "memory":
                return tokenized(examples, range(len(examples)), tokenizer, form)
        return prepare(
            examples,
            tokenizer,
            form,
            self.directory,
            table_key(splits.digest, split, tokenizer, form),
            label=f"tokenizing {split}",
            max_bad_records=self._data.max_bad_records,
        )

    def plan(self, sizes: np.ndarray, capacities: Sequence[int], make: Callable) -> Plan:
        """A packing plan for examples of these sizes."""
        sizes = np.ascontiguousarray(sizes, np.int64)
        key = content_digest([sizes.data, str(list(capacities))])[:32]
        directory = self.directory / f"plan-{key}"
        if not directory.exists():
            plan = make(sizes, capacities)
            _make_whole(directory, lambda path: np.savez(Path(path, "plan"), **plan._asdict()))
        with np.load(directory / "plan.npz") as saved:
            return Plan(**saved)


def _texts(splits: Sequence[Splits]) -> Iterator[str]:
    """What a tokenizer is trained on; records that cannot be read are none of its business."""
    fields = {"pairs": ("source", "target"), "documents": ("text",), "labelled": ("text",)}
    for each in splits:
        for index in range(min(len(each.train), TRAINING_TEXTS)):
            try:
                example = each.train[index]
            except BadRecordError:
                continue
            for field in fields[each.kind]:
                yield example[field]
            if "text_pair" in example:
                yield example["text_pair"]


def _make_whole(directory: Path, make: Callable[[str], None]) -> None:
    """A directory that is there complete or not at all, whoever else is making it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    making = tempfile.mkdtemp(dir=directory.parent, prefix=f"{directory.name}.making-")
    try:
        make(making)
        os.rename(making, directory)
    except OSError:
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
