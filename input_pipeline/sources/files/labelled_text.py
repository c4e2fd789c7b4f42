"""Labelled texts: <split>.tsv (label, tab, text, and optionally a tab and a second text), or
<split>.jsonl with the keys `label`, `text` and optionally `text_pair`; plain or gzip.

Splits may be in shards, or files may have no splits; see splits.py. The labels are those of the
training split, or of all files if there are no splits, sorted.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    BadRecordError,
    Example,
    Splits,
    content_digest,
    good_records,
)
from input_pipeline.sources.files import shards
from input_pipeline.sources.files.reading import Lines


def load(data: DataConfig) -> Splits:
    found = shards.open_splits(data, LabelledLines, (".tsv", ".jsonl"), key="text")
    first = next(good_records(found.train), None)
    if first is None:
        _refuse(data, found.train)
    has_pairs = "text_pair" in first
    # Without splits, all records of a rare label may have been held out.
    known = [found.train, found.held_out] if found.from_heap else [found.train]
    labels = tuple(sorted({r["label"] for records in known for r in good_records(records)}))
    numbers = {label: number for number, label in enumerate(labels)}
    return Splits(
        "labelled",
        LabelledExamples(found.train, numbers, has_pairs),
        {data.eval_split: LabelledExamples(found.held_out, numbers, has_pairs)},
        labels,
        {"train_texts": len(found.train), "held_out_texts": len(found.held_out)},
        content_digest(found.digests),
        text_pairs=has_pairs,
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
        self._is_json = lines.path.name.removesuffix(".gz").endswith(".jsonl")

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> dict[str, str]:
        if self._is_json:
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
