"""Reads GGUF files, which are not trusted: metadata, and tensors that are dequantised on reading.

The package `gguf` (an extra) reads the header and dequantises. A tensor is read when it is needed.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from pretrained.layouts import Index

SUFFIX = ".gguf"
INSTALL = "pip install -e '.[gguf]'"
MOST_ITEMS = 2**22  # the most items of an array in the metadata; a large vocabulary has 2**18


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor in the file: its shape, rows first, and what the package needs to read it."""

    shape: tuple[int, ...]
    data: np.ndarray  # of the memory-mapped file
    kind: Any  # a GGMLQuantizationType

    def rows(self, chosen: slice | np.ndarray) -> np.ndarray:
        """These rows as float32; other rows are not read."""
        import gguf

        if len(self.shape) < 2:  # the blocks of a quantised vector are no rows
            return gguf.dequantize(np.asarray(self.data), self.kind).reshape(self.shape)[chosen]
        part = np.ascontiguousarray(self.data[chosen])
        if not len(part):
            return np.empty((0, *self.shape[1:]), np.float32)
        return gguf.dequantize(part, self.kind).reshape(len(part), *self.shape[1:])


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """The metadata of a file and its tensors, by their names in GGUF."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def open_gguf(path: Path) -> GgufFile:
    """Reads the header; raises ConfigError if the package is missing or the file is not valid."""
    if not importlib.util.find_spec("gguf"):
        raise ConfigError(f"--from={path} is a GGUF file, which needs the extra gguf: {INSTALL}")
    reader = _read_header(path)
    if reader.byte_order != "I":
        raise ConfigError(f"{path} has the byte order of another machine; get a usual GGUF file")
    metadata = {}
    for name, field in reader.fields.items():
        try:
            metadata[name] = field.contents()
        except UnicodeDecodeError as error:
            raise _invalid(path, error) from error
    tensors = {}
    for each in reader.tensors:
        _refuse_unreadable(path, each.name, each.tensor_type)
        shape = tuple(int(size) for size in reversed(each.shape.tolist()))
        tensors[each.name] = GgufTensor(shape, each.data, each.tensor_type)
    return GgufFile(path, metadata, tensors)


def _read_header(path: Path):
    import gguf

    class BoundedReader(gguf.GGUFReader):
        """The package's reader; counts and lengths may not lead beyond the file's end."""

        def _get(self, offset, dtype, count=1, override_order=None):
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs, raw_type):
            if raw_type == gguf.GGUFValueType.ARRAY:
                count = int(self._get(orig_offs + 4, np.uint64)[0])
                if count > MOST_ITEMS:
                    raise ValueError(f"an array has {count:,} items, more than {MOST_ITEMS:,}")
            return super()._get_field_parts(orig_offs, raw_type)

    try:
        return BoundedReader(path)
    except Exception as error:  # the package's errors have no class of their own
        raise _invalid(path, error) from error


def _refuse_unreadable(path: Path, name: str, kind: Any) -> None:
    import gguf

    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError as error:
        raise ConfigError(
            f"{path}: {name} has the type {kind.name}, which the package gguf cannot read; take a "
            "file of another type, such as F16 or Q8_0"
        ) from error


def _invalid(path: Path, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())
    return ConfigError(f"{path} is not a valid GGUF file ({reason}); download it again")


class RenamedTensors:
    """The tensors of a file under the names of the hub, as `model_files.Tensors` has them.

    `interleaved` has the heads of tensors whose rows are permuted within each head: of a head of
    size K, rows 2i and 2i + 1 are rows i and i + K/2 on the hub.
    """

    def __init__(
        self, file: GgufFile, names: Mapping[str, str], interleaved: Mapping[str, int] | None = None
    ):
        self._tensors = {theirs: file.tensors[name] for theirs, name in names.items()}
        self._interleaved = dict(interleaved or {})
        self.shapes = {theirs: tensor.shape for theirs, tensor in self._tensors.items()}

    def require_float(self, name: str) -> None:
        """Does nothing: `open_gguf` has refused types that cannot be dequantised."""

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor in float32; `index` is one slice per axis, or fewer."""
        tensor = self._tensors[name]
        if not tensor.shape:
            return tensor.rows(slice(None))
        rows, *others = index or (slice(None),)
        if heads := self._interleaved.get(name):
            rows = _interleaved_rows(tensor.shape[0], heads)[rows]
        return tensor.rows(rows)[(slice(None), *others)]


def _interleaved_rows(rows: int, heads: int) -> np.ndarray:
    """Row r on the hub is row result[r] of the file."""
    if rows % (2 * heads):
        raise ConfigError(f"{rows} rows are not {heads} heads of an even size")
    numbers = np.arange(rows).reshape(heads, rows // heads // 2, 2)
    return numbers.transpose(0, 2, 1).reshape(-1)


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names, separated by commas."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + more
