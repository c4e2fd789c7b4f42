"""The `data` section of a config."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Annotated, Literal

from experiment.schema import (
    Bounds,
    Count,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Probability,
    path_problems,
)
from input_pipeline.tokenizers.train_vocabulary import Kind

# What only images know, and what each of them is where there are none.
IMAGE_KEYS = {
    "image_size": 0,
    "image_fit": "center_crop",
    "image_resample": "bicubic",
    "image_mean": (),
    "image_std": (),
    "crop_padding": 0,
    "crop_scale": 0.0,
    "flip": False,
    "random_erasing": 0.0,
    "mixup": 0.0,
}
FORMER_FIT = "crop"  # the default of data.image_fit in older runs, which their records still have

# The keys that name the fields of a public data set, by the kind of examples made of them.
FIELD_KEYS = {
    "pairs": ("source_language", "target_language"),
    "documents": ("text_field",),
    "labelled": ("text_field", "text_pair_field", "label_field"),
    "images": ("label_field",),
}
OPTIONAL = ("text_pair_field",)

MOST_BUCKETS = 16  # that may be asked for: each costs a compilation

SHORTEST_LIST = 4  # an operator, two digits and the bracket

# What the examples of a source are; of a public data set data.kind says it.
KINDS = {
    "dates": "pairs",
    "pydoc": "documents",
    "names": "labelled",
    "digits": "images",
    "listops": "labelled",
    "text_files": "documents",
    "translation_files": "pairs",
    "labelled_text_files": "labelled",
    "image_files": "images",
    "text_to_text_files": "pairs",
}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    # Where examples come from
    source: Literal[
        "dates",
        "pydoc",
        "names",
        "digits",
        "listops",
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
    listops_depth: PositiveInt
    listops_arguments: Annotated[int, Bounds(at_least=2)]
    listops_min_length: Annotated[int, Bounds(at_least=SHORTEST_LIST)]
    listops_max_length: PositiveInt
    # Text to ids
    tokenizer: str
    tokenizer_size: PositiveInt
    lowercase: bool
    cache_dir: str
    # Ids to rows
    batch_size: PositiveInt
    length: PositiveInt
    encoder_length: PositiveInt
    packing: bool
    buckets: tuple[PositiveInt, ...]
    bucket_count: Annotated[int, Bounds(at_least=0, at_most=MOST_BUCKETS)]
    over_long: Literal["truncate", "split", "drop"]
    # Images
    image_size: Count
    image_fit: Literal["center_crop", "stretch", "crop"]
    image_resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
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

    @property
    def sorts_by_length(self) -> bool:
        """Whether a batch has examples of like lengths."""
        return bool(self.buckets or self.bucket_count)

    @property
    def example_kind(self) -> str:
        """The kind of the examples, known without loading them; a mixture's are all of one."""
        source = self.source
        if self.mixture and source != "text_to_text_files":
            source = self.mixture[0][0].partition(":")[0]
        return KINDS.get(source, self.kind)

    def problems(self) -> Iterator[str]:
        for key in ("path", "name", "tokenizer", "cache_dir"):
            yield from path_problems(f"data.{key}", getattr(self, key))
        if self.source != "text_to_text_files":  # whose mixture is of tasks
            for what, _ in self.mixture:
                source, _, place = what.partition(":")
                yield from path_problems(f"data.mixture: {source}", place)
        if self.crop_padding and 0 < self.crop_scale < 1:
            yield (
                f"data.crop_padding={self.crop_padding} and data.crop_scale={self.crop_scale:g} "
                "are two ways to crop an image; set one of them to 0"
            )
        if self.source in ("tfds", "huggingface"):
            yield from self._missing_names()
        if self.source == "listops":
            yield from self._list_problems()
        if self.source.endswith("_files") and self.train_split == self.eval_split:
            yield (
                f"data.eval_split={self.eval_split!r} is what the model is trained on; "
                "choose another split"
            )
        if self.buckets and self.bucket_count:
            yield (
                f"data.buckets={self.buckets} and data.bucket_count={self.bucket_count} both say "
                "what to pad to; set one of them to () or 0"
            )
        for key, off in (("buckets", ()), ("bucket_count", 0)):
            if self.packing and getattr(self, key):
                yield f"data.packing=True and data.{key} are two ways to save padding; choose one"
            if self.mixture and getattr(self, key):
                yield (
                    f"data.{key} sorts batches by length, so data.mixture could not keep its "
                    f"proportions; set data.{key}={off}, or mix with data.packing=True"
                )
        trained = typing.get_args(Kind)
        if self.lowercase and self.tokenizer not in trained:
            yield (
                f"data.lowercase=True is for a tokenizer that is trained on the data "
                f"({', '.join(trained)}), not data.tokenizer={self.tokenizer!r}; set it to False"
            )

    def _missing_names(self) -> Iterator[str]:
        if not self.kind:
            yield (
                f"data.kind is empty; set it for data.source={self.source} "
                f"to one of: {', '.join(FIELD_KEYS)}"
            )
        for key in ("name", "train_split", "eval_split", *FIELD_KEYS.get(self.kind, ())):
            if not getattr(self, key) and key not in OPTIONAL:
                yield f"data.{key} is empty; set it for data.source={self.source}"

    def _list_problems(self) -> Iterator[str]:
        shortest, longest = self.listops_min_length, self.listops_max_length
        if longest < shortest + 2:
            yield (
                f"data.listops_max_length={longest} must exceed data.listops_min_length={shortest} "
                "by at least 2: not every length can be met exactly"
            )
        fits = self._longest_list()
        if longest > fits:
            yield (
                f"data.listops_max_length={longest} exceeds the {fits} symbols of the longest list "
                f"with data.listops_depth={self.listops_depth} and "
                f"data.listops_arguments={self.listops_arguments}; change one of them"
            )
        if self.tokenizer == "byte" and longest + 2 > self.length:
            yield (
                f"data.length={self.length} would cut lists off, which leaves them without an "
                f"answer: set it to at least {longest + 2}, for data.listops_max_length={longest} "
                "between cls and sep"
            )

    def _longest_list(self) -> int:
        """Symbols of the list in which everything is as deep and has as many arguments as it may;
        counted no further than is asked for, because they soon are more than can be said."""
        symbols, depth = 1, 0
        while depth < self.listops_depth and symbols < self.listops_max_length:
            symbols, depth = 2 + self.listops_arguments * symbols, depth + 1
        return symbols
