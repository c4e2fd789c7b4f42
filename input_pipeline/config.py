"""The `data` section of a config."""

import dataclasses
from typing import Annotated, Literal

from schema import Bounds, Count, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class DataConfig:
    # Where examples come from
    source: Literal[
        "dates",
        "pydoc",
        "names",
        "digits",
        "text_files",
        "translation_files",
        "labelled_text_files",
        "image_files",
        "text_to_text_files",
        "tfds",
        "huggingface",
    ]
    path: str
    name: str
    version: str
    kind: Literal["", "pairs", "documents", "labelled", "images"]
    train_split: str
    eval_split: str
    eval_share: Annotated[float, Bounds(above=0, below=1)]
    source_language: str
    target_language: str
    text_field: str
    text_pair_field: str
    label_field: str
    max_bad_records: Count
    mixture: tuple[tuple[str, PositiveFloat], ...]
    # Text to ids
    tokenizer: str
    tokenizer_size: PositiveInt
    cache_dir: str
    # Ids to rows
    batch_size: PositiveInt
    length: PositiveInt
    encoder_length: PositiveInt
    packing: bool
    buckets: tuple[PositiveInt, ...]
    over_long: Literal["truncate", "split", "drop"]
    # Read ahead
    prefetch: Count
    workers: Count
