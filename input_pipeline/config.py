"""The `data` section of a config."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

from schema import Bounds, Count, PositiveInt

# The keys that name the fields of a public data set, by the kind of examples made of them.
FIELD_KEYS = {
    "pairs": ("source_language", "target_language"),
    "documents": ("text_field",),
    "labelled": ("text_field", "text_pair_field", "label_field"),
    "images": ("label_field",),
}
OPTIONAL = ("text_pair_field",)


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
    # Text to ids
    tokenizer: str
    tokenizer_size: PositiveInt
    cache_dir: str
    # Ids to rows
    batch_size: PositiveInt
    length: PositiveInt
    encoder_length: PositiveInt
    # Read ahead
    prefetch: Count

    def problems(self) -> Iterator[str]:
        if self.source not in ("tfds", "huggingface"):
            return
        if not self.kind:
            yield (
                f"data.kind is empty; set it for data.source={self.source} "
                f"to one of: {', '.join(FIELD_KEYS)}"
            )
        for key in ("name", "train_split", "eval_split", *FIELD_KEYS.get(self.kind, ())):
            if not getattr(self, key) and key not in OPTIONAL:
                yield f"data.{key} is empty; set it for data.source={self.source}"
