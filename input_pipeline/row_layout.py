"""Fields of natural length -> rows of fixed length, one or several examples to a row.

Everything is padded with zeros: the weight and the segment of padding, which no loss and no query
reads. Examples that share a row have segments 1, 2, ... and positions that start again at 0, so
that the model keeps them apart.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from input_pipeline.objectives import Fields


@dataclasses.dataclass(frozen=True)
class RowLayout:
    length: int
    encoder_length: int
    # Text read from left to right needs no segments: padding behind it is never seen from before.
    segments: bool
    packed: bool

    def row(self, parts: Sequence[Fields]) -> Fields:
        """The fields of all examples that share a row, side by side."""
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
        """Values side by side, each in as many columns as its size; a number fills them all."""
        columns = self.encoder_length if name.startswith("encoder_") else self.length
        padded = np.zeros(columns, dtype)
        start = 0
        for value, size in zip(values, sizes, strict=True):
            padded[start : start + size] = value
            start += size
        return padded
