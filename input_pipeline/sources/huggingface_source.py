"""Data sets from the Hugging Face hub or from a directory. Needs the extra `huggingface`.

`data.name` is a name such as `stanfordnlp/imdb`, or `nyu-mll/glue:sst2` with a configuration, or a
directory that `save_to_disk` wrote or `load_dataset` can read. Files are downloaded to HF_HOME
on first use; HF_HUB_OFFLINE=1 forbids downloads.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources import record_fields
from input_pipeline.sources.base import Source, Splits, refusal_of_split

HEADER_BYTES = 4096  # mostly enough for the size and the colours of a PNG or JPEG file


def load(data: DataConfig) -> Splits:
    """The data set data.name; raises ConfigError if it cannot be loaded or used."""
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            "data.source=huggingface needs a package: pip install 'backbone[huggingface]'"
        ) from None

    stored = _stored_splits(data)
    # A fingerprint identifies the files that a split was made of; saved splits keep theirs.
    identity = [f"{name} {rows._fingerprint}" for name, rows in sorted(stored.items())]
    features = next(iter(stored.values())).features
    mode = getattr(features.get("image"), "mode", None)
    stored = _undecoded(stored, features)

    def select(key: str, split: str) -> record_fields.StoredSplit:
        lengths = {name: len(rows) for name, rows in stored.items()}
        try:
            parts = datasets.ReadInstruction.from_spec(split).to_absolute(lengths)
        except ValueError as error:
            raise refusal_of_split(
                f"{key}={split!r} of {data.name}: {error} It has: {', '.join(stored)}",
                split,
                stored,
            ) from None
        pieces = [(part.splitname, part.from_, part.to) for part in parts]
        rows = [stored[name].select(range(first, end)) for name, first, end in pieces]
        joined = datasets.concatenate_datasets(rows)

        def column(field: str) -> Iterator[Any]:
            for batch in joined.select_columns([field]).iter(batch_size=1000):
                yield from batch[field]

        return record_fields.StoredSplit(joined, pieces, column, partial(_image_starts, joined))

    return record_fields.splits(
        data,
        select("data.train_split", data.train_split),
        select("data.eval_split", data.eval_split),
        features=features,
        identity=identity,
        description={"huggingface": data.name, "revision": data.version},
        image_mode=mode if mode in ("L", "RGB") else None,  # others have transparency, or are rare
    )


SOURCE = Source("huggingface", load, place="name")


def _undecoded(stored, features):
    """The splits with images, sounds etc. as the bytes of their files.

    `datasets` would decode every column of every record, images of any format included.
    image_decoding.py decodes images for all sources, in safe formats only. Columns with lists of
    such values are removed: no kind of example uses them, and casting would copy the data set.
    """
    for name, feature in features.items():
        if getattr(feature, "decode", False):
            stored = stored.cast_column(name, dataclasses.replace(feature, decode=False))
        elif _decodes(feature):
            stored = stored.remove_columns(name)
    return stored


def _image_starts(rows) -> Iterator[bytes | None]:
    """The first bytes of each image file; None for images that are stored as paths.

    Arrow's buffers are views, so the rest of the files is not read from disk.
    """
    for table in rows.select_columns(["image"]).with_format("arrow").iter(batch_size=1000):
        for cell in table["image"]:
            if not hasattr(cell, "as_buffer") and cell.is_valid:
                cell = cell["bytes"]
            yield cell.as_buffer()[:HEADER_BYTES].to_pybytes() if cell.is_valid else None


def _decodes(feature) -> bool:
    """Whether reading a value of this type decodes a file, at any depth."""
    if isinstance(feature, Mapping):
        return any(map(_decodes, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_decodes, feature))
    return bool(getattr(feature, "decode", False)) or _decodes(getattr(feature, "feature", ()))


def _stored_splits(data: DataConfig):
    """All splits, as a DatasetDict."""
    import datasets

    name, config = data.name, None
    is_directory = os.path.isdir(name)
    if not is_directory and ":" in name:
        name, config = name.split(":", 1)
    try:
        if is_directory and {"dataset_dict.json", "state.json"} & set(os.listdir(name)):
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, config, revision=data.version or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"data.name={data.name!r} cannot be loaded: {reason}") from None
    # A data set that was saved without splits becomes the split `train`.
    alone = isinstance(found, datasets.Dataset)
    return datasets.DatasetDict({"train": found}) if alone else found
