"""IDX, the file format of MNIST: the images of a split in one file, its labels in another.

A file has two zero bytes, the type of the values (8: uint8), the number of axes, their lengths
as big-endian 32-bit integers, and the values. It may be gzipped.
"""

import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from experiment.schema import ConfigError
from experiment.untrusted_files import decompress, require_regular
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, MissingSplitError, Splits, content_digest
from input_pipeline.sources.image_decoding import ImageSpec

FILE_PREFIX = {"test": "t10k"}  # MNIST names its test files after their size
UINT8 = 8


class IdxImages(Sequence):
    """Images and labels of a split. `spec` resizes the images; None keeps their size."""

    def __init__(self, images: np.ndarray, labels: Sequence[int], spec: ImageSpec | None):
        self._images, self._labels, self._spec = images, labels, spec

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index: int) -> Example:
        image = self._images[index]
        pixels = self._spec.fitted(Image.fromarray(image)) if self._spec else image[..., None]
        return {"image": pixels, "label": int(self._labels[index])}


def is_idx(directory: Path) -> bool:
    """Whether the directory holds IDX files of images."""
    return any(directory.glob("*idx3-ubyte*"))


def load(directory: Path, data: DataConfig) -> Splits:
    """The splits of a directory of IDX files."""
    spec = None
    if data.image_size:
        # Its images have no EXIF, so data.image_upright changes nothing.
        spec = ImageSpec(
            "L", data.image_size, True, data.image_fit, data.image_resample, edge=data.image_edge
        )
    read = {
        split: _read_split(directory, key, split, data.image_size)
        for key, split in (("train_split", data.train_split), ("eval_split", data.eval_split))
    }
    classes = np.unique(read[data.train_split][1])
    examples = {}
    for split, (images, labels) in read.items():
        unknown = np.flatnonzero(~np.isin(labels, classes))
        if len(unknown):
            raise ConfigError(
                f"{_find(directory, split, 'labels', 1)}: entry {unknown[0]} is the class "
                f"{labels[unknown[0]]}, which no training image has"
            )
        examples[split] = IdxImages(images, np.searchsorted(classes, labels), spec)
    arrays = [array for pair in read.values() for array in pair]
    contents = [part for array in arrays for part in (str(array.shape), array.tobytes())]
    resizing = spec.digest_parts[1:] if spec else ()
    return Splits(
        kind="images",
        train=examples[data.train_split],
        evals={data.eval_split: examples[data.eval_split]},
        labels=tuple(str(c) for c in classes),
        description={"pillow": Image.__version__},
        digest=content_digest([str(data.image_size), *resizing, *contents]),
    )


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The uint8 array in an IDX file; raises ConfigError unless it has this many axes."""
    try:
        with require_regular(path).open("rb") as file:
            content = decompress(file, path) if path.suffix == ".gz" else file.read()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    magic, header = bytes([0, 0, UINT8, axes]), 4 + 4 * axes
    if content[:4] != magic or len(content) < header:
        raise ConfigError(
            f"{path} does not begin like an IDX file of bytes in {axes} axes: "
            f"{content[:4].hex(' ')!r} in place of {magic.hex(' ')!r} and {axes} lengths"
        )
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise ConfigError(
            f"{path} holds {len(content) - header} values, but its header promises "
            f"{' x '.join(map(str, shape))}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_split(
    directory: Path, key: str, split: str, image_size: int
) -> tuple[np.ndarray, np.ndarray]:
    paths = [_find(directory, split, "images", 3), _find(directory, split, "labels", 1)]
    if None in paths:
        prefix = FILE_PREFIX.get(split, split)
        raise MissingSplitError(
            f"data.{key}={split!r}: {directory} lacks {prefix}-images-idx3-ubyte[.gz] or "
            f"{prefix}-labels-idx1-ubyte[.gz]; MNIST's own splits are 'train' and 'test'",
            split,
            _known_splits(directory),
        )
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise ConfigError(
            f"{paths[0]} has {len(images)} images, but {paths[1].name} has {len(labels)} labels"
        )
    _, rows, columns = images.shape
    if rows != columns and not image_size:
        raise ConfigError(
            f"{paths[0]}: its images have {columns}x{rows} pixels, which is not square; "
            "set data.image_size to resize them to a square"
        )
    return images, labels


def _known_splits(directory: Path) -> list[str]:
    prefixes = {re.split("-images[-.]idx3", p.name)[0] for p in directory.glob("*-images?idx3*")}
    names = {prefix: name for name, prefix in FILE_PREFIX.items()}
    return sorted(names.get(prefix, prefix) for prefix in prefixes)


def _find(directory: Path, split: str, what: str, axes: int) -> Path | None:
    prefix = FILE_PREFIX.get(split, split)
    names = [
        f"{prefix}-{what}{separator}idx{axes}-ubyte{ending}"
        for separator in "-."
        for ending in ("", ".gz")
    ]
    return next((directory / name for name in names if (directory / name).is_file()), None)
