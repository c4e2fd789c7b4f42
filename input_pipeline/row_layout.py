"""Fields of variable length -> rows of fixed length, one or several examples per row.

Rows are padded with zeros: padding has weight 0 and segment 0, so the loss ignores it and no query
attends to it. Examples that share a row have segments 1, 2, ... and positions that restart at 0, so
no example attends to another.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from input_pipeline.rows import Fields

# Targets and weights, and the column of the inputs that each belongs to.
PREDICTION_FIELDS = ("targets", "weights", "predicted")


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The shape of a row, and which extra fields it has."""

    length: int
    encoder_length: int
    # Causal models need no segments: no token attends to the padding after it.
    segments: bool
    packed: bool
    # Columns of PREDICTION_FIELDS, if the model predicts at few positions of a row; 0: at all.
    predictions: int = 0

    def row(self, parts: Sequence[Fields]) -> Fields:
        """Concatenates the fields of the examples of one row, and pads them."""
        row = {}
        for name in parts[0]:
            if parts[0][name].ndim == 0:
                (row[name],) = (part[name] for part in parts)  # a row has one label
                continue
            values = [part[name] for part in parts]
            dtype = np.float32 if name.endswith("weights") else np.int32
            row[name] = self._padded(name, values, [*map(len, values)], dtype)
        for prefix in ("", "encoder_"):
            if f"{prefix}inputs" not in row:
                continue
            sizes = [len(part[f"{prefix}inputs"]) for part in parts]
            if self.segments or self.packed or prefix:
                numbers = range(1, len(sizes) + 1)
                row[f"{prefix}segment_ids"] = self._padded(prefix, numbers, sizes, np.int32)
            if self.packed:
                positions = map(np.arange, sizes)
                row[f"{prefix}positions"] = self._padded(prefix, positions, sizes, np.int32)
        return row

    def _padded(
        self, name: str, values: Iterable[np.ndarray | int], sizes: Sequence[int], dtype: type
    ) -> np.ndarray:
        """Concatenates values and pads them; value i fills sizes[i] columns."""
        columns = self.encoder_length if name.startswith("encoder_") else self.length
        if self.predictions and name in PREDICTION_FIELDS:
            columns = self.predictions
        padded = np.zeros(columns, dtype)
        start = 0
        for value, size in zip(values, sizes, strict=True):
            padded[start : start + size] = value
            start += size
        return padded
