"""Rows: what an objective turns into one row of a batch, with text as ids.

`parts(index)` gives the examples of a row: one, unless rows are packed. `origins(index)` gives
their numbers in the source.
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
class RowSide:
    """The encoder's or decoder's side of a row: its fields, and the columns they share."""

    fields: tuple[str, ...]
    length: int  # columns
    added: int  # special ids that the objective adds
    key: str = "data.length"  # the config key of `length`

    @property
    def room(self) -> int:
        """Columns for the ids of the fields."""
        return self.length - self.added


def fit(texts: Sequence[np.ndarray], room: int) -> list[np.ndarray]:
    """Truncates one or two texts to `room` ids together; the longer one first, as in BERT."""
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = map(len, texts)
    if first + second > room:
        half = room // 2
        if second <= half:
            first = room - second
        elif first <= room - half:
            second = room - first
        else:
            first, second = room - half, half
    return [texts[0][:first], texts[1][:second]]


class ExampleRows:
    """One row per entry of a table.

    `over_long` says what happens to entries that do not fit: truncate, drop, or split (single
    texts only), which continues them in further rows.
    """

    def __init__(
        self, table: TokenTable | LazyTokenTable, sides: Sequence[RowSide], over_long: str
    ):
        self._table, self._sides = table, sides
        self._entries = self._starts = None  # None: all entries, from their start
        self.too_long = 0
        # (side, entries that are too long there, columns that the longest needs)
        self.long_sides: list[tuple[RowSide, int, int]] = []
        if isinstance(table, LazyTokenTable):
            return
        too_long = np.zeros(len(table), bool)
        for side in sides:
            lengths = self._lengths(side)
            long_here = lengths > side.room
            too_long |= long_here
            if long_here.any():
                self.long_sides.append(
                    (side, int(long_here.sum()), int(lengths.max()) + side.added)
                )
        self.too_long = int(too_long.sum())
        if over_long == "drop":
            self._entries = np.flatnonzero(~too_long)
        elif over_long == "split":
            (side,) = sides
            pieces = -(-self._lengths(side) // side.room)  # 0 for an empty text
            self._entries = np.repeat(np.arange(len(table)), pieces)
            number = np.arange(len(self._entries)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            self._starts = number * side.room

    def _lengths(self, side: RowSide) -> np.ndarray:
        return sum(self._table.lengths(field) for field in side.fields)

    def __len__(self):
        return len(self._table) if self._entries is None else len(self._entries)

    def entry(self, index: int) -> int:
        return index if self._entries is None else int(self._entries[index])

    def parts(self, index: int) -> list[Row]:
        row = self._table.entry(self.entry(index))
        if self._starts is not None:
            (field,) = self._sides[0].fields
            row[field] = row[field][self._starts[index] :]
        for side in self._sides:
            texts = fit([row[field] for field in side.fields], side.room)
            row.update(zip(side.fields, texts, strict=True))
        return [row]

    def is_cut(self, index: int, field: str) -> bool:
        """Whether a field of the row was truncated."""
        whole = self._table.entry(self.entry(index))[field]
        return len(self.parts(index)[0][field]) < len(whole)

    def origins(self, index: int) -> list[int]:
        return [self._table.origin(self.entry(index))]

    def pieces(self, index: int) -> list[tuple[int, int, int]]:
        """The ids in the row, as (example, first id, end). For single texts."""
        start = 0 if self._starts is None else int(self._starts[index])
        ((field,),) = (side.fields for side in self._sides)
        return [(*self.origins(index), start, start + len(self.parts(index)[0][field]))]

    def sizes(self) -> np.ndarray:
        """Columns that each row needs: (rows, sides)."""
        lengths = [self._lengths(side) for side in self._sides]
        if self._entries is not None:
            lengths = [values[self._entries] for values in lengths]
        if self._starts is not None:
            lengths = [lengths[0] - self._starts]
        columns = zip(lengths, self._sides, strict=True)
        return np.stack([np.minimum(n, side.room) + side.added for n, side in columns], axis=1)


class GroupedRows:
    """Groups of rows of one example each, or a selection of them, by a plan."""

    def __init__(self, rows: ExampleRows, plan: Plan):
        self._rows, self._plan = rows, plan

    def __len__(self):
        return len(self._plan)

    def parts(self, index: int) -> list[Row]:
        return [row for i in self._plan.examples(index) for row in self._rows.parts(int(i))]

    def origins(self, index: int) -> list[int]:
        return [each for i in self._plan.examples(index) for each in self._rows.origins(int(i))]


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
                found.append((self._table.origin(entry), *inside))
        return found

    def origins(self, index: int) -> list[int]:
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

    def origins(self, index: int) -> list[int]:
        return sorted({self._table.origin(i) for i in range(*self._bounds[index])})


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


class ImageRows:
    """One row per image."""

    def __init__(self, examples: Sequence[Example]):
        self._examples = examples

    def __len__(self):
        return len(self._examples)

    def parts(self, index: int) -> list[Row]:
        return [dict(self._examples[index])]

    def origins(self, index: int) -> list[int]:
        return [index]


Rows = ExampleRows | GroupedRows | WindowRows | SentenceRows | ImageRows
