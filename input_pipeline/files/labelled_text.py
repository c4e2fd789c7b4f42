"""Texts with a label: <split>.tsv (label, tab, text, and optionally a tab and a second text), or
<split>.jsonl with the keys `label`, `text` and optionally `text_pair`; gzip or plain.

The labels are those of the training split, sorted.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from input_pipeline.config import DataConfig
from input_pipeline.files.reading import Lines, find_split
from input_pipeline.source import BadRecordError, Example, Splits, content_digest, good_records
from schema import ConfigError


def load(data: DataConfig) -> Splits:
    splits = (data.train_split, data.eval_split)
    train, held_out = (Records(Lines(find_split(data.path, s, (".tsv", ".jsonl")))) for s in splits)
    first = next(good_records(train), None)
    if first is None:
        _refuse(train)
    has_pairs = "text_pair" in first
    labels = tuple(sorted({record["label"] for record in good_records(train)}))
    numbers = {label: number for number, label in enumerate(labels)}
    return Splits(
        "labelled",
        Labelled(train, numbers, has_pairs),
        {data.eval_split: Labelled(held_out, numbers, has_pairs)},
        labels,
        {"train_texts": len(train), "held_out_texts": len(held_out)},
        content_digest([train.lines.digest, held_out.lines.digest]),
        text_pairs=has_pairs,
    )


def _refuse(records: "Records") -> NoReturn:
    """Because there is none that can be used; the first one says why."""
    try:
        records[0]
    except BadRecordError as error:
        raise ConfigError(f"{error}; no line of the file can be used, mend them") from error
    except IndexError:
        raise ConfigError(
            f"{records.lines.path} is empty; it needs a label and a text on each line"
        ) from None


class Records(Sequence):
    """Lines of a file, taken apart: label and text, and text_pair if the line has it."""

    def __init__(self, lines: Lines):
        self.lines = lines
        self._is_json = ".jsonl" in lines.path.suffixes

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, str]:
        if self._is_json:
            record = self.lines.json(index, "label", "text")
            keys = [key for key in ("text", "text_pair") if key in record]
            texts = {key: record[key] for key in keys}
            label = record["label"]
        else:
            label, *columns = self.lines[index].split("\t")
            if not 1 <= len(columns) <= 2:
                raise self.lines.bad(
                    index, f"{1 + len(columns)} columns; needs label, tab, text (or two texts)"
                )
            texts = dict(zip(("text", "text_pair"), columns, strict=False))
        for key, text in texts.items():
            self.lines.text(index, key, text)
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            raise self.lines.bad(index, f"label {label!r} is neither text nor a whole number")
        return {"label": str(label), **texts}


class Labelled(Sequence):
    """Records with their labels as numbers."""

    def __init__(self, records: Records, numbers: Mapping[str, int], has_pairs: bool):
        self._records, self._numbers, self._has_pairs = records, numbers, has_pairs

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        record, lines = self._records[index], self._records.lines
        if record["label"] not in self._numbers:
            raise lines.bad(index, f"label {record['label']!r} does not occur in training")
        if ("text_pair" in record) != self._has_pairs:
            has = "has a" if self._has_pairs else "has no"
            raise lines.bad(index, f"the first record {has} second text, and this one differs")
        return {**record, "label": self._numbers[record["label"]]}
