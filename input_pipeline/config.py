"""The `data` section of a config."""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from experiment.schema import (
    HUB,
    OBJECT_STORAGE,
    Bounds,
    ConfigError,
    Count,
    NonNegativeFloat,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Probability,
    build,
    did_you_mean,
    path_problems,
)
from input_pipeline.tokenizers.train_vocabulary import TokenizerKind
from storage.hub import spelling

if TYPE_CHECKING:
    from input_pipeline.sources.base import Source

# Keys for images only, and the values that they have without images.
IMAGE_KEYS = {
    "image_size": 0,
    "image_edge": 0,
    "image_fit": "center_crop",
    "image_resample": "bicubic",
    "image_upright": True,
    "image_mean": (),
    "image_std": (),
    "crop_padding": 0,
    "crop_scale": 0.0,
    "flip": False,
    "random_erasing": 0.0,
    "mixup": 0.0,
}
# Defaults of data.image_fit and data.image_upright in older runs, which their records still have.
FORMER_FIT, FORMER_UPRIGHT = "crop", False

# The keys that name the fields of a public data set, by kind of example.
FIELD_KEYS = {
    "pairs": ("source_language", "target_language"),
    "documents": ("text_field",),
    "labelled": ("text_field", "text_pair_field", "label_field"),
    "images": ("label_field",),
}
OPTIONAL = ("text_pair_field",)

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # as people write it
MOST_BUCKETS = 16  # each one costs a compilation


def source_table() -> Mapping[str, "Source"]:
    """The sources by name. They import this module, so they cannot be imported above."""
    from input_pipeline.sources.registry import SOURCES

    return SOURCES


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The keys of `data`: where examples come from, and how they become batches."""

    # Where examples come from
    source: Annotated[str, OneOf(source_table)]
    path: str
    name: str
    version: str
    kind: Literal["", "pairs", "documents", "labelled", "images"]
    train_split: str
    eval_split: str
    eval_share: Annotated[float, Bounds(above=0, below=1)]
    train_examples: Count
    source_language: str
    target_language: str
    text_field: str
    text_pair_field: str
    label_field: str
    max_bad_records: Count
    class_balance: Literal["none", "weights", "oversample"]
    class_weights: tuple[tuple[str, PositiveFloat], ...]
    mixture: tuple[tuple[str, PositiveFloat], ...]
    options: Mapping[str, Any] = dataclasses.field(hash=False)
    # Text to ids
    tokenizer: str
    tokenizer_size: PositiveInt
    lowercase: bool
    cache_dir: str
    verify_cache: bool
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
    image_edge: Count
    image_fit: Literal["center_crop", "stretch", "crop"]
    image_resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
    image_upright: bool
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
    def weighs_classes(self) -> bool:
        """Whether examples of some classes count or occur more often than in the data."""
        return self.class_balance != "none" or bool(self.class_weights)

    @property
    def sorts_by_length(self) -> bool:
        """Whether batches hold examples of similar lengths."""
        return bool(self.buckets or self.bucket_count)

    @property
    def example_kind(self) -> str:
        """The kind of the examples, known without loading them; a mixture has one kind."""
        first = source_table().get(self.sources[0])
        return (first and first.kind) or self.kind

    @property
    def mixes_tasks(self) -> bool:
        """Whether `mixture` is of the source's own tasks, not of sources."""
        return source_table()[self.source].has_tasks

    @property
    def sources(self) -> list[str]:
        """The sources that are read: `source`, or those of the mixture."""
        if not self.mixture or self.mixes_tasks:
            return [self.source]
        return [what.partition(":")[0] for what, _ in self.mixture]

    @property
    def source_options(self) -> Any:
        """`options` as the dataclass that the source declares; raises ConfigError."""
        declared = source_table()[self.source].options
        options, problems = build(declared, self.options, "data.options")
        if problems:
            raise ConfigError(problems)
        return options

    def problems(self) -> Iterator[str]:
        yield from path_problems("data.path", self.path, OBJECT_STORAGE)
        yield from path_problems("data.tokenizer", self.tokenizer, (*OBJECT_STORAGE, HUB))
        yield from path_problems("data.cache_dir", self.cache_dir, OBJECT_STORAGE)
        schemes = OBJECT_STORAGE if self.source == "tfds" else ()
        yield from path_problems("data.name", self.name, schemes)
        if not self.mixes_tasks:
            for what, _ in self.mixture:
                source, _, place = what.partition(":")
                yield from path_problems(f"data.mixture: {source}", place, OBJECT_STORAGE)
        if self.image_edge and not 0 < self.image_size <= self.image_edge:
            yield (
                f"data.image_edge={self.image_edge} must be at least data.image_size="
                f"{self.image_size}, which is cut out of it, and that must be set; or set it to 0"
            )
        if self.crop_padding and 0 < self.crop_scale < 1:
            yield (
                f"data.crop_padding={self.crop_padding} and data.crop_scale={self.crop_scale:g} "
                "are two ways to crop an image; set one of them to 0"
            )
        place = source_table()[self.source].place
        if place == "name":
            yield from self._missing_names()
        yield from self._option_problems()
        if place == "path" and self.train_split == self.eval_split:
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
        if self.tokenizer == "item" and self.example_kind != "items":
            yield (
                f"data.tokenizer=item is for sequences of items, not data.source={self.source}; "
                "choose another, such as bpe"
            )
        trained = [kind for kind in typing.get_args(TokenizerKind) if kind != "item"]
        if self.lowercase and self.tokenizer not in trained:
            yield from tokenizer_problems(self.tokenizer)
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

    def _option_problems(self) -> Iterator[str]:
        table = source_table()
        with_options = {name for name, source in table.items() if source.options}
        if self.options and not with_options & {self.source, *self.sources}:
            names = ", ".join(f"data.options.{name}" for name in self.options)
            yield (
                f"data.source={self.source} has no options; remove {names}, "
                "or set data.options={}"
            )
        if self.source in with_options:
            options, problems = build(table[self.source].options, self.options, "data.options")
            yield from problems
            if not problems and hasattr(options, "problems_with"):
                yield from options.problems_with(self)


def tokenizer_problems(name: str) -> Iterator[str]:
    """Says so if data.tokenizer is neither a kind of tokenizer nor a file that exists.

    Not part of `DataConfig.problems`: a trained run has its own copy of the tokenizer. One on the
    hub or in a bucket is looked for when it is opened.
    """
    known = ("byte", *typing.get_args(TokenizerKind))
    if name in known or "://" in name or Path(name).exists():
        return
    meant = spelling(name) if HUB_NAME.fullmatch(name) else "hf://ORG/NAME"
    hint = did_you_mean(name, known) or (
        f" Of a model on the hub, write data.tokenizer={meant}; of a directory, "
        "data.tokenizer=DIR/tokenizer.json"
    )
    yield f"data.tokenizer={name!r} is no file and not one of: {', '.join(known)}.{hint}"
