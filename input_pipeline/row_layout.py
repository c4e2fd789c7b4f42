"""Fields of variable length -> rows of fixed length, one or several examples per row.

Rows are padded with zeros: padding has weight 0 and segment 0, so no loss and no query reads it.
Examples that share a row have segments 1, 2, ... and positions that restart at 0, which keeps them
apart in the model.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from input_pipeline.rows import Fields


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The shape of a row, and which extra fields it has."""

    length: int
    encoder_length: int
    # Causal models need no segments: a text never sees the padding that follows it.
    segments: bool
    packed: bool

    def row(self, parts: Sequence[Fields]) -> Fields:
        """Concatenates the fields of the examples of one row, and pads them."""
        row = {}
        for name in parts[0]:
            if parts[0][name].ndim == 0:
                (row[name],) = (part[name] for part in parts)  # a row has one label
                continue
            values = [part[name] for part in parts]
            dtype = np.float32 if name.endswith("weights") else np.int32
            row[name] = self._laid(name, values, [*map(len, values)], dtype)
        for side in ("", "encoder_"):
            if f"{side}inputs" not in row:
                continue
            sizes = [len(part[f"{side}inputs"]) for part in parts]
            if self.segments or self.packed or side:
                numbers = range(1, len(sizes) + 1)
                row[f"{side}segment_ids"] = self._laid(side, numbers, sizes, np.int32)
            if self.packed:
                positions = map(np.arange, sizes)
                row[f"{side}positions"] = self._laid(side, positions, sizes, np.int32)
        return row

    def _laid(
        self, name: str, values: Iterable[np.ndarray | int], sizes: Sequence[int], dtype: type
    ) -> np.ndarray:
        """Concatenates and pads values; each fills as many columns as its size."""
        columns = self.encoder_length if name.startswith("encoder_") else self.length
        padded = np.zeros(columns, dtype)
        start = 0
        for value, size in zip(values, sizes, strict=True):
            padded[start : start + size] = value
            start += size
        return padded
