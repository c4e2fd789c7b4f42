"""Converts the records of public data sets, from TFDS or Hugging Face, to examples."""

import dataclasses
import itertools
import json
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.atomic_directory import make_directory_atomically
from input_pipeline.config import FIELD_KEYS, DataConfig
from input_pipeline.sources.base import (
    BadRecordError,
    Example,
    Splits,
    content_digest,
    refuse_single_use,
)
from input_pipeline.sources.files.checking import check, check_record
from input_pipeline.sources.image_decoding import (
    FORMATS,
    ImageColours,
    ImageHeader,
    ImageSpec,
    count_colours,
    infer_image_spec,
    read,
    read_header,
)
from input_pipeline.token_cache import cache_directory

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class StoredSplit:
    """The records of a split such as 'train[:99%]', and which stored records they are."""

    rows: Sequence[Record]
    pieces: Sequence[tuple[str, int, int]]  # file or stored split, first record, end
    # Reads the values of one field, if the library can do so without reading all fields.
    column: Callable[[str], Iterable[Any]] | None = None
    # Reads the first bytes of each image file, or None, if the library can do so more cheaply.
    image_starts: Callable[[], Iterable[bytes | None]] | None = None

    def values(self, field: str) -> Iterable[Any]:
        if self.column:
            return self.column(field)
        return (self.rows[index][field] for index in range(len(self.rows)))


def splits(
    data: DataConfig,
    train: StoredSplit,
    evaluation: StoredSplit,
    *,
    features: Mapping[str, Any],
    identity: Sequence[str],
    description: Mapping[str, Any],
    image_mode: str | None = None,
) -> Splits:
    """The splits of a data set.

    features: the library's feature of each field. identity: strings that identify the content, so
    that no records need to be hashed. image_mode: Pillow's mode, if known; otherwise the images are
    grey if all of them are.
    """
    _refuse_overlap(data, train, evaluation)
    if train.rows:
        _refuse_unknown_fields(data, train.rows[0])
    labels, by_name = (), False
    if data.kind in ("labelled", "images"):
        labels = getattr(features[data.label_field], "names", None)  # both libraries' ClassLabel
        by_name = labels is None
        labels = _names_in(train, data) if by_name else tuple(labels)
    spec = None
    cuts = {data.train_split: train, data.eval_split: evaluation}
    if data.kind == "images":
        if image_mode is None:
            colours = _colours(data, cuts, identity)
            colours.warn()
            image_mode = colours.mode
        spec = infer_image_spec(map(_file, train.rows), data, image_mode)
    examples = {
        split: _Examples(cut.rows, data, split, labels, by_name, spec)
        for split, cut in cuts.items()
    }
    chosen = [f"{key}={getattr(data, key)}" for key in FIELD_KEYS[data.kind]]
    parts = spec.digest_parts if spec else (repr(spec),)
    digest = content_digest(
        [*identity, data.kind, *chosen, *parts, repr(train.pieces), repr(evaluation.pieces)]
    )
    if data.kind == "images":
        # Text is checked when it is tokenized; images are checked here.
        examples = {
            split: check(each, data.max_bad_records, check_record(data, digest, split))
            for split, each in examples.items()
        }
    return Splits(
        data.kind,
        train=examples[data.train_split],
        evals={data.eval_split: examples[data.eval_split]},
        labels=labels,
        description=description,
        digest=digest,
        text_pairs=data.kind == "labelled" and bool(data.text_pair_field),
    )


class _Examples(Sequence[Example]):
    """The records of one split as examples, converted on access."""

    def __init__(
        self,
        rows: Sequence[Record],
        data: DataConfig,
        split: str,
        labels: tuple[str, ...],
        by_name: bool,
        spec: ImageSpec | None,
    ):
        self._rows, self._data, self._split = rows, data, split
        self._labels, self._spec = labels, spec
        self._numbers = {name: number for number, name in enumerate(labels)} if by_name else None

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            return self._example(self._rows[int(index)])
        except BadRecordError as error:
            where = f"{self._data.name}, split {self._split}, record {index}"
            raise BadRecordError(f"{where}: {error}") from None

    def _example(self, record: Record) -> Example:
        data = self._data
        match data.kind:
            case "pairs":
                texts = _texts_of_pair(record)
                return {
                    "source": _some_text(texts, data.source_language),
                    "target": _some_text(texts, data.target_language),
                }
            case "documents":
                return {"text": _text(record, data.text_field)}
            case "labelled":
                pair = data.text_pair_field
                return {
                    "label": self._label(record),
                    "text": _some_text(record, data.text_field),
                    **({"text_pair": _some_text(record, pair)} if pair else {}),
                }
            case "images":
                return {"image": read(_file(record), self._spec), "label": self._label(record)}

    def _label(self, record: Record) -> int:
        label = record[self._data.label_field]
        if self._numbers is not None:
            name = _label_name(label)
            if name not in self._numbers:
                raise BadRecordError(f"label {name!r} does not occur in training")
            return self._numbers[name]
        if label is None or label == -1:
            raise BadRecordError(f"its label is {label}: this split has no labels; choose another")
        if not 0 <= label < len(self._labels):
            raise BadRecordError(f"its label is {label}, but there are {len(self._labels)} labels")
        return int(label)


def _texts_of_pair(record: Record) -> Mapping[str, Any]:
    """The texts of a pair: the whole record in TFDS, the field `translation` at Hugging Face."""
    return record.get("translation", record)


def _some_text(record: Record, field: str) -> str:
    text = _text(record, field)
    if not text.strip():
        raise BadRecordError(f"{field} is empty")
    return text


def _text(record: Record, field: str) -> str:
    value = record[field]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadRecordError(f"{field} is not UTF-8 at byte {error.start}") from None
    if not isinstance(value, str):
        raise BadRecordError(f"{field} is of type {type(value).__name__}, not text")
    return value


def _file(record: Record) -> bytes:
    """The content of an image file; Hugging Face stores the bytes or a path."""
    stored = record["image"]
    if isinstance(stored, Mapping):
        stored = stored["bytes"] or Path(stored["path"]).read_bytes()
    return stored or b""


def _colours(
    data: DataConfig, cuts: Mapping[str, StoredSplit], identity: Sequence[str]
) -> ImageColours:
    """Counts grey and transparent images; the counts are stored, so that later runs skip this."""
    pieces = [f"{split} {cut.pieces!r}" for split, cut in cuts.items()]
    key = content_digest([*identity, *pieces, Image.__version__, *FORMATS])[:32]
    stored = cache_directory(data) / f"colours-{key}" / "counts.json"
    if stored.exists():
        return ImageColours(**json.loads(stored.read_text()))
    total = sum(len(cut.rows) for cut in cuts.values())
    named = (
        (f"{data.name}, split {split}, record {index}", header)
        for split, cut in cuts.items()
        for index, header in enumerate(_headers(cut))
    )
    found = count_colours(tqdm(named, "reading headers", total, leave=False, disable=None))
    if found.readable == total:  # others are read again: the disk may have been the cause
        text = json.dumps(found._asdict())
        make_directory_atomically(
            stored.parent, lambda making: (making / stored.name).write_text(text)
        )
    return found


def _headers(cut: StoredSplit) -> Iterator[ImageHeader | None]:
    """The header of each image; a whole file is read only if its start is not enough."""
    starts = cut.image_starts() if cut.image_starts else itertools.repeat(None)
    for index, start in zip(range(len(cut.rows)), starts, strict=False):
        yield (read_header(start) if start else None) or _full_header(cut.rows[index])


def _full_header(record: Record) -> ImageHeader | None:
    try:
        return read_header(_file(record))
    except (OSError, TypeError):  # a path that leads nowhere, or is missing
        return None


def _names_in(train: StoredSplit, data: DataConfig) -> tuple[str, ...]:
    """The labels of the training split, sorted, if the records hold names and not numbers."""
    names, problem = Counter(), None
    for value in train.values(data.label_field):
        try:
            names[_label_name(value)] += 1
        except BadRecordError as error:
            problem = problem or error
    if not names and problem:
        raise ConfigError(
            f"data.label_field={data.label_field!r} of {data.name} cannot be used: {problem}; it "
            "takes text, whole numbers, or numbers with a list of names (ClassLabel)"
        )
    hint = f"data.label_field={data.label_field!r} does not hold classes, choose another field"
    refuse_single_use(names, data.name, hint)
    return tuple(sorted(names))


def _label_name(value: Any) -> str:
    """A label as text, by the same rule as for labelled text files."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise BadRecordError(f"its label is not UTF-8 at byte {error.start}") from None
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (is_integer or isinstance(value, str)) or value == "":
        raise BadRecordError(f"its label {value!r} is neither text nor a whole number")
    return str(value)


def _refuse_unknown_fields(data: DataConfig, record: Record) -> None:
    fields = _texts_of_pair(record) if data.kind == "pairs" else record
    asked = {f"data.{key}": getattr(data, key) for key in FIELD_KEYS[data.kind]}
    if data.kind == "images":
        asked["data.kind"] = "image"
    problems = [
        f"{key}: {data.name} has no field {field!r} but {', '.join(map(repr, fields))}."
        f"{did_you_mean(field, fields)}"
        for key, field in asked.items()
        if field and field not in fields
    ]
    if problems:
        raise ConfigError(problems)


def _refuse_overlap(data: DataConfig, train: StoredSplit, evaluation: StoredSplit) -> None:
    for place, first, end in train.pieces:
        for other_place, other_first, other_end in evaluation.pieces:
            if place == other_place and max(first, other_first) < min(end, other_end):
                raise ConfigError(
                    f"data.train_split={data.train_split!r} and data.eval_split="
                    f"{data.eval_split!r} of {data.name} share records; cut them apart, "
                    "as in 'train[:99%]' and 'train[99%:]'"
                )
