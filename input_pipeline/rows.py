"""Rows of tokenized examples. An objective turns each into one row of a batch.

`parts(index)` gives the examples of a row: one, unless rows are packed. `example_indices(index)`
gives their indices in the source.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.packing import Plan
from input_pipeline.sources.base import Example
from input_pipeline.token_table import LazyTokenTable, TokenTable

Row = dict[str, Any]
Fields = dict[str, np.ndarray]  # what an objective makes of a row


@dataclasses.dataclass(frozen=True)
class SequenceSpec:
    """The encoder's or the decoder's token sequence in a row: its fields and its length."""

    fields: tuple[str, ...]
    length: int  # columns, shared by the fields
    added: int  # special ids that the objective adds
    key: str = "data.length"  # the config key of `length`
    keep_end: bool = False  # whether texts that are too long lose their beginning

    @property
    def room(self) -> int:
        """Columns for the ids of the fields."""
        return self.length - self.added


def fit(texts: Sequence[np.ndarray], room: int, *, keep_end: bool = False) -> list[np.ndarray]:
    """Truncates one or two texts to `room` ids together; the longer one first, as in BERT.

    A text loses its end, or with `keep_end` its beginning.
    """
    if len(texts) == 1:
        return [_cut(texts[0], room, keep_end)]
    first, second = map(len, texts)
    if first + second > room:
        half = room // 2
        if second <= half:
            first = room - second
        elif first <= room - half:
            second = room - first
        else:
            first, second = room - half, half
    return [_cut(texts[0], first, keep_end), _cut(texts[1], second, keep_end)]


def _cut(text: np.ndarray, size: int, keep_end: bool) -> np.ndarray:
    return text[max(len(text) - size, 0) :] if keep_end else text[:size]


class ExampleRows:
    """One row per entry of a table.

    `over_long` says what happens to entries that do not fit: truncate, drop, or split (single
    texts only), which continues them in further rows.
    """

    def __init__(
        self, table: TokenTable | LazyTokenTable, sequences: Sequence[SequenceSpec], over_long: str
    ):
        self._table, self._sequences = table, sequences
        self._entries = self._starts = None  # None: all entries, from their start
        self.too_long = 0
        # (sequence, number of entries that are too long for it, columns that the longest needs)
        self.long_sequences: list[tuple[SequenceSpec, int, int]] = []
        if isinstance(table, LazyTokenTable):
            return
        too_long = np.zeros(len(table), bool)
        for sequence in sequences:
            lengths = self._lengths(sequence)
            long_here = lengths > sequence.room
            too_long |= long_here
            if long_here.any():
                self.long_sequences.append(
                    (sequence, int(long_here.sum()), int(lengths.max()) + sequence.added)
                )
        self.too_long = int(too_long.sum())
        if over_long == "drop":
            self._entries = np.flatnonzero(~too_long)
        elif over_long == "split":
            (sequence,) = sequences
            pieces = -(-self._lengths(sequence) // sequence.room)  # 0 for an empty text
            self._entries = np.repeat(np.arange(len(table)), pieces)
            number = np.arange(len(self._entries)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            self._starts = number * sequence.room

    def _lengths(self, sequence: SequenceSpec) -> np.ndarray:
        return sum(self._table.lengths(field) for field in sequence.fields)

    def __len__(self):
        return len(self._table) if self._entries is None else len(self._entries)

    def entry(self, index: int) -> int:
        return index if self._entries is None else int(self._entries[index])

    def parts(self, index: int) -> list[Row]:
        row = self._table.entry(self.entry(index))
        if self._starts is not None:
            (field,) = self._sequences[0].fields
            row[field] = row[field][self._starts[index] :]
        for sequence in self._sequences:
            texts = [row[field] for field in sequence.fields]
            keep_end = sequence.keep_end and self._starts is None  # pieces begin at their start
            texts = fit(texts, sequence.room, keep_end=keep_end)
            row.update(zip(sequence.fields, texts, strict=True))
        return [row]

    def is_cut(self, index: int, field: str) -> bool:
        """Whether a field of the row was truncated."""
        full = self._table.entry(self.entry(index))[field]
        return len(self.parts(index)[0][field]) < len(full)

    def example_indices(self, index: int) -> list[int]:
        return [self._table.example_index(self.entry(index))]

    def pieces(self, index: int) -> list[tuple[int, int, int]]:
        """The ids in the row, as (example, first id, end). For single texts."""
        start = 0 if self._starts is None else int(self._starts[index])
        ((field,),) = (sequence.fields for sequence in self._sequences)
        return [(*self.example_indices(index), start, start + len(self.parts(index)[0][field]))]

    def numbers(self, name: str) -> np.ndarray:
        """A number of each row, such as its label."""
        values = self._table.numbers(name)
        return values if self._entries is None else values[self._entries]

    def sizes(self) -> np.ndarray:
        """Columns that each row needs: (rows, sequences)."""
        lengths = [self._lengths(sequence) for sequence in self._sequences]
        if self._entries is not None:
            lengths = [values[self._entries] for values in lengths]
        if self._starts is not None:
            lengths = [lengths[0] - self._starts]
        columns = zip(lengths, self._sequences, strict=True)
        return np.stack([np.minimum(n, s.room) + s.added for n, s in columns], axis=1)


class GroupedRows:
    """Groups the rows of `rows` into longer rows, or selects some of them, as `plan` says."""

    def __init__(self, rows: ExampleRows, plan: Plan):
        self._rows, self._plan = rows, plan

    def __len__(self):
        return len(self._plan)

    def parts(self, index: int) -> list[Row]:
        return [row for i in self._plan.examples(index) for row in self._rows.parts(int(i))]

    def example_indices(self, index: int) -> list[int]:
        rows = self._plan.examples(index).tolist()
        return [example for row in rows for example in self._rows.example_indices(row)]


class WindowRows:
    """Documents, each followed by eos, concatenated and cut into windows of `width` ids.

    Every id is in exactly one window. Only the last window may be shorter.
    """

    def __init__(self, table: TokenTable, width: int):
        self._table, self._width = table, width

    def __len__(self):
        return math.ceil(len(self._table.stream("text")) / self._width)

    def parts(self, index: int) -> list[Row]:
        start = index * self._width
        return [{"text": self._table.stream("text")[start : start + self._width]}]

    def pieces(self, index: int) -> list[tuple[int, int, int]]:
        """The ids in the window, as (document, first id, end)."""
        start, stop = index * self._width, (index + 1) * self._width
        ends = self._table.ends("text")
        found = []
        for entry in range(int(np.searchsorted(ends, start, side="right")), len(ends)):
            first = int(ends[entry - 1]) if entry else 0
            if first >= stop:
                break
            inside = max(start, first) - first, min(stop, int(ends[entry])) - first
            if inside[0] < inside[1]:  # a document may have no ids
                found.append((self._table.example_index(entry), *inside))
        return found

    def example_indices(self, index: int) -> list[int]:
        """All documents with ids in the window."""
        return sorted({document for document, _, _ in self.pieces(index)})


class SentenceRows:
    """Consecutive sentences of a document, at least two and enough to fill `room`.

    Documents of one sentence are left out.
    """

    def __init__(self, table: TokenTable, room: int):
        self._table = table
        self._bounds = _sentence_groups(table.numbers("first"), table.lengths("text"), room)

    def __len__(self):
        return len(self._bounds)

    def parts(self, index: int) -> list[Row]:
        start, stop = self._bounds[index]
        return [{"sentences": [self._table.ids("text", i) for i in range(start, stop)]}]

    def example_indices(self, index: int) -> list[int]:
        return sorted({self._table.example_index(i) for i in range(*self._bounds[index])})


def _sentence_groups(first: np.ndarray, lengths: np.ndarray, room: int) -> np.ndarray:
    """(groups, 2): start and stop. A group grows until two or more sentences fill the room."""
    groups: list[tuple[int, int]] = []
    start = filled = 0
    last = len(first) - 1
    for index, length in enumerate(lengths.tolist()):
        filled += length
        ends = index == last or first[index + 1]
        if ends and index == start:
            # One sentence of the document is left over: it joins the group before.
            if groups and groups[-1][1] == start and not first[start]:
                groups[-1] = (groups[-1][0], index + 1)
        elif ends or (filled >= room and index > start):
            groups.append((start, index + 1))
        else:
            continue
        start, filled = index + 1, 0
    return np.array(groups, np.int64).reshape(-1, 2)


class PatchedRows:
    """One row per example, without tokens."""

    def __init__(self, examples: Sequence[Example]):
        self._examples = examples

    def __len__(self):
        return len(self._examples)

    def parts(self, index: int) -> list[Row]:
        return [dict(self._examples[index])]

    def example_indices(self, index: int) -> list[int]:
        return [index]


Rows = ExampleRows | GroupedRows | WindowRows | SentenceRows | PatchedRows
