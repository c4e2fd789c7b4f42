"""The `data` section of a config."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

from schema import Bounds, Count, NonNegativeFloat, PositiveFloat, PositiveInt, Probability

# What only images know; every one of them is switched off by 0, False or ().
IMAGE_KEYS = (
    "image_size",
    "image_mean",
    "image_std",
    "crop_padding",
    "crop_scale",
    "flip",
    "random_erasing",
    "mixup",
)


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
    # Images
    image_size: Count
    image_mean: tuple[float, ...]
    image_std: tuple[PositiveFloat, ...]
    crop_padding: Count
    crop_scale: Probability
    flip: bool
    random_erasing: Probability
    mixup: NonNegativeFloat
    # Read ahead
    prefetch: Count
    workers: Count

    def problems(self) -> Iterator[str]:
        if self.crop_padding and 0 < self.crop_scale < 1:
            yield (
                f"data.crop_padding={self.crop_padding} and data.crop_scale={self.crop_scale:g} "
                "are two ways to crop an image; set one of them to 0"
            )
