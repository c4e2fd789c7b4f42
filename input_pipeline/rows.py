"""Rows: what an objective turns into one line of a batch. Text has become ids by here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.source import Example
from input_pipeline.tokenizer import Tokenizer

Row = dict[str, Any]


class ExampleRows:
    """One example, one row: the text fields named in `capacity` become at most so many ids.

    All other fields stay as they are. What is cut off is gone; `truncated` counts such rows.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer | None,
        capacity: Mapping[str, int],
    ):
        self._examples, self._tokenizer, self._capacity = examples, tokenizer, capacity

    def __len__(self):
        return len(self._examples)

    def row(self, index: int) -> Row:
        example = self._examples[index]
        ids = {
            field: self._tokenizer.encode(example[field])[:most]
            for field, most in self._capacity.items()
        }
        return {**example, **ids}

    def example(self, index: int) -> Example:
        return self._examples[index]

    def truncated(self) -> int:
        return sum(
            any(len(self._tokenizer.encode(e[field])) > n for field, n in self._capacity.items())
            for e in self._examples
        )


class WindowRows:
    """Documents laid end to end, each closed by eos, and cut into windows of `width` ids.

    Every id is in exactly one window; only the last window may be shorter.
    """

    def __init__(self, documents: Sequence[Example], tokenizer: Tokenizer, width: int):
        self._tokenizer, self._width = tokenizer, width
        smallest = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
        pieces = [
            np.append(tokenizer.encode(document["text"]), tokenizer.eos_id).astype(smallest)
            for document in documents
        ]
        self._stream = np.concatenate(pieces) if pieces else np.empty(0, smallest)

    def __len__(self):
        return math.ceil(len(self._stream) / self._width)

    def row(self, index: int) -> Row:
        start = index * self._width
        return {"text": self._stream[start : start + self._width].astype(np.int32)}

    def example(self, index: int) -> Example:
        return {"text": self._tokenizer.decode(self.row(index)["text"])}

    def truncated(self) -> int:
        return 0
