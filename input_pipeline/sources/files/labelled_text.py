"""Labelled texts: <split>.tsv (label, tab, text, and optionally a tab and a second text), or
<split>.jsonl with the keys `label`, `text` and optionally `text_pair`; plain or gzip.

Splits may be in shards, or files may have no splits; see splits.py. The labels are those of the
training split, or of all files if there are no splits, sorted.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from absl import logging

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    BadRecordError,
    Example,
    MissingSplitError,
    Splits,
    content_digest,
    good_records,
    refuse_single_use,
)
from input_pipeline.sources.files import shards
from input_pipeline.sources.files.reading import Lines

# What the column of labels is usually called in files that have a heading.
HEADINGS = (
    "label", "labels", "label_id", "label_name", "label_text", "gold", "gold_label", "class",
    "classes", "class_id", "class_name", "category", "categories", "target", "targets", "intent",
    "sentiment", "polarity", "emotion", "topic", "tag", "y",
)  # fmt: skip
ENDINGS = (".tsv", ".jsonl")
SHOWN_LABELS = 8  # in a warning
IN_JSON = "the key 'label' names the class"
IN_TSV = "the label comes first, then a tab, then the text"


def load(data: DataConfig) -> Splits:
    counts: Counter[str] = Counter()  # of the labels in training, or in the heap

    def examine(records: shards.Shards) -> None:
        found, headings = _labels(records, range(len(records)))
        counts.update(found)
        _refuse_quotes(records, counts)
        _refuse_spaces(data, counts)
        _refuse_headings(headings, counts - Counter(label for label, _ in headings))
        if counts:
            hint = IN_JSON if records.at(0)[0].is_json else IN_TSV
            refuse_single_use(counts, data.path, hint)

    try:
        found = shards.open_splits(data, LabelledLines, ENDINGS, key="text", examine=examine)
    except MissingSplitError:
        _refuse_other_files(data)
        raise
    if not found.from_heap:
        _refuse_headings(_labels(found.held_out, found.held_out.starts)[1], counts)
    first = next(good_records(found.train), None)
    if first is None:
        _refuse(data, found.train)
    has_pairs = "text_pair" in first
    labels = tuple(sorted(counts))
    if found.from_heap:
        _warn_of_unseen(labels, found.train)
    numbers = {label: number for number, label in enumerate(labels)}
    description = {"train_texts": len(found.train), "held_out_texts": len(found.held_out)}
    if found.from_heap:
        description["held_out_share"] = data.eval_share
    return Splits(
        "labelled",
        LabelledExamples(found.train, numbers, has_pairs),
        {data.eval_split: LabelledExamples(found.held_out, numbers, has_pairs)},
        labels,
        description,
        content_digest(found.digests),
        text_pairs=has_pairs,
    )


def _refuse_other_files(data: DataConfig) -> None:
    """Because no name of a split could help, such as folders of .txt files for each class."""
    directory = Path(data.path).expanduser()
    names = (path.name.removesuffix(".gz") for path in directory.rglob("*"))
    if directory.is_dir() and not any(name.endswith(ENDINGS) for name in names):
        raise ConfigError(
            f"{data.path} has no file that ends in .tsv or .jsonl. labelled_text_files reads "
            f"{data.train_split}.tsv and {data.eval_split}.tsv, with label, tab, text on a line; "
            'or .jsonl, with {"label": ..., "text": ...} on a line; or one such file as '
            "data.path. It does not read a folder of files for each class: docs/data.md has a "
            "command that makes one file of them"
        )


def _refuse_quotes(records: shards.Shards, labels: Collection[str]) -> None:
    """As a CSV writer puts them around every column."""
    if not labels or records.at(0)[0].is_json:
        return
    if all(len(each) > 1 and each[0] == each[-1] == '"' for each in labels):
        file, _ = records.at(0)
        raise ConfigError(
            f"{file.lines.path}: every label is in double quotes, such as {min(labels)}; TSV files "
            "have no quotes here: write each line as label, tab, text, and tabs and line ends of "
            "a text as spaces; or write JSON lines to a .jsonl file"
        )


def _refuse_spaces(data: DataConfig, labels: Collection[str]) -> None:
    """Labels that differ only in the spaces around them."""
    for label in sorted(labels):
        if label != label.strip() and label.strip() in labels:
            raise ConfigError(
                f"{data.path}: the labels {label!r} and {label.strip()!r} differ only in spaces; "
                "remove the spaces around the label"
            )


def _warn_of_unseen(labels: Sequence[str], train: shards.Records) -> None:
    """A hash may hold out all examples of a rare class."""
    unseen = set(labels) - {record["label"] for record in good_records(train)}
    if unseen:
        shown = ", ".join(sorted(unseen)[:SHOWN_LABELS])
        more = ", ..." if len(unseen) > SHOWN_LABELS else ""
        logging.warning(
            "%d of %d classes have no training example, because the hash holds out all of theirs: "
            "%s%s; add examples, or write train and validation files",
            len(unseen), len(labels), shown, more,
        )  # fmt: skip


def _labels(
    records: shards.Shards, indices: Iterable[int]
) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Counts the labels; also those on first lines that may be a heading, with file and line."""
    counts, headings, quoted = Counter(), [], []
    for file, line in map(records.at, indices):
        try:
            record = file[line]
        except BadRecordError:
            continue
        label = record["label"]
        counts[label] += 1
        if not file.is_json and any(map(_is_quoted, (record["text"], record.get("text_pair", "")))):
            quoted.append(f"{file.lines.path}:{line + 1}")
        if not line and not file.is_json and label.strip().casefold() in HEADINGS:
            headings.append((label, f"{file.lines.path}:1"))
    if quoted:
        logging.warning(
            "%d lines, the first is %s, have a text in double quotes with \"\" inside, as CSV "
            "writers do; TSV files have no quotes here, so they stay in the text: write the text "
            "without them, or JSON lines to a .jsonl file",
            len(quoted), quoted[0],
        )  # fmt: skip
    return counts, headings


def _is_quoted(text: str) -> bool:
    """Whether a CSV writer put the text in quotes, because quotes are in it."""
    inside = text[1:-1]
    is_between = len(text) > 1 and text[0] == text[-1] == '"'
    return is_between and '""' in inside and '"' not in inside.replace('""', "")


def _refuse_headings(headings: Sequence[tuple[str, str]], classes: Container[str]) -> None:
    for label, place in headings:
        if label not in classes:
            raise ConfigError(
                f"{place}: a heading line, because no other line has the label {label!r}; TSV "
                "files have no heading here, remove the line (a class of this name needs more "
                "texts, or another name)"
            )


def _refuse(data: DataConfig, records: shards.Records) -> NoReturn:
    """Raises the problem of the first record, because none can be used."""
    try:
        records[0]
    except BadRecordError as error:
        raise ConfigError(f"{error}; no line of the split can be used, mend them") from error
    except IndexError:
        raise ConfigError(
            f"the split {data.train_split!r} of {data.path} is empty; it needs a label and a text "
            "on each line"
        ) from None


class LabelledLines(Sequence):
    """The lines of a file, parsed: label, text, and text_pair if the line has it."""

    def __init__(self, lines: Lines):
        self.lines = lines
        self.is_json = lines.path.name.removesuffix(".gz").endswith(".jsonl")

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> dict[str, str]:
        if self.is_json:
            record = self.lines.json(line, "label", "text")
            keys = [key for key in ("text", "text_pair") if key in record]
            texts = {key: record[key] for key in keys}
            label = record["label"]
        else:
            label, *columns = self.lines[line].split("\t")
            if not 1 <= len(columns) <= 2:
                raise self.lines.bad(
                    line, f"{1 + len(columns)} columns; needs label, tab, text (or two texts)"
                )
            texts = dict(zip(("text", "text_pair"), columns, strict=False))
        for key, text in texts.items():
            self.lines.text(line, key, text)
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            raise self.lines.bad(line, f"label {label!r} is neither text nor a whole number")
        return {"label": str(label), **texts}


class LabelledExamples(Sequence):
    """Records with their labels as numbers."""

    def __init__(self, records: shards.Records, numbers: Mapping[str, int], has_pairs: bool):
        self._records, self._numbers, self._has_pairs = records, numbers, has_pairs

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        records, line = self._records.at(index)
        record, bad = records[line], records.lines.bad
        if record["label"] not in self._numbers:
            raise bad(line, f"label {record['label']!r} does not occur in training")
        if ("text_pair" in record) != self._has_pairs:
            has = "has a" if self._has_pairs else "has no"
            raise bad(line, f"the first record {has} second text, and this one differs")
        return {**record, "label": self._numbers[record["label"]]}
