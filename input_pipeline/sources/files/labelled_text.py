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
    Source,
    Splits,
    content_digest,
    readable_examples,
    refuse_single_use,
)
from input_pipeline.sources.files import shards
from input_pipeline.sources.files.reading import Lines

# Usual names of the first column, in files that begin with a heading. Labels belong there, but a
# heading may name the columns in the wrong order.
HEADINGS = (
    "label", "labels", "label_id", "label_name", "label_text", "gold", "gold_label", "class",
    "classes", "class_id", "class_name", "category", "categories", "target", "targets", "intent",
    "sentiment", "polarity", "emotion", "topic", "tag", "y",
    "text", "texts", "sentence", "review", "comment", "question", "document", "title", "content",
    "id", "idx", "index",
)  # fmt: skip
ENDINGS = (".tsv", ".jsonl")
SHOWN_LABELS = 8  # in a warning
IN_JSON = "the key 'label' names the class"
IN_TSV = "the label comes first, then a tab, then the text"


def load(data: DataConfig) -> Splits:
    """The labelled texts at data.path; raises ConfigError if they cannot be used."""
    # How often each label occurs in the training split, or in all files if they name no splits.
    counts: Counter[str] = Counter()

    def examine(examples: shards.Shards) -> None:
        found, headings = _labels(examples, range(len(examples)))
        counts.update(found)
        _refuse_quotes(examples, counts)
        _refuse_spaces(data, counts)
        _refuse_headings(headings, counts - Counter(label for label, _ in headings))
        if counts:
            hint = IN_JSON if examples.at(0)[0].is_json else IN_TSV
            refuse_single_use(counts, data.path, hint)

    try:
        found = shards.open_splits(data, LabelledLines, ENDINGS, key="text", examine=examine)
    except MissingSplitError:
        _refuse_other_files(data)
        raise
    if not found.facts:
        _refuse_headings(_labels(found.eval, found.eval.starts)[1], counts)
    first = next(readable_examples(found.train), None)
    if first is None:
        _refuse(data, found.train)
    has_pairs = "text_pair" in first
    labels = tuple(sorted(counts))
    if found.facts:
        _warn_of_unseen(labels, found.train)
    numbers = {label: number for number, label in enumerate(labels)}
    sizes = {"train_texts": len(found.train), "held_out_texts": len(found.eval)}
    return Splits(
        "labelled",
        LabelledExamples(found.train, numbers, has_pairs),
        {data.eval_split: LabelledExamples(found.eval, numbers, has_pairs)},
        labels,
        sizes | found.facts,
        content_digest(found.digests),
        text_pairs=has_pairs,
    )


SOURCE = Source(
    "labelled_text_files",
    load,
    "labelled",
    "path",
    tab_separates_texts=True,
    for_imports=True,
)


def _refuse_other_files(data: DataConfig) -> None:
    """Raises ConfigError if no file has a known ending: no name of a split would help then."""
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


def _refuse_quotes(examples: shards.Shards, labels: Collection[str]) -> None:
    """Raises ConfigError if all labels are in double quotes, as a CSV writer puts them."""
    if not labels or examples.at(0)[0].is_json:
        return
    if all(len(each) > 1 and each[0] == each[-1] == '"' for each in labels):
        file, _ = examples.at(0)
        raise ConfigError(
            f"{file.lines.path}: every label is in double quotes, such as {min(labels)}; TSV files "
            "have no quotes here: write each line as label, tab, text, and tabs and line ends of "
            "a text as spaces; or write JSON lines to a .jsonl file"
        )


def _refuse_spaces(data: DataConfig, labels: Collection[str]) -> None:
    """Raises ConfigError if two labels differ only in the spaces around them."""
    for label in sorted(labels):
        if label != label.strip() and label.strip() in labels:
            raise ConfigError(
                f"{data.path}: the labels {label!r} and {label.strip()!r} differ only in spaces; "
                "remove the spaces around the label"
            )


def _warn_of_unseen(labels: Sequence[str], train: shards.ShardedExamples) -> None:
    """Warns of classes without training examples: a hash may hold out all of a rare class."""
    unseen = set(labels) - {record["label"] for record in readable_examples(train)}
    if unseen:
        shown = ", ".join(sorted(unseen)[:SHOWN_LABELS])
        more = ", ..." if len(unseen) > SHOWN_LABELS else ""
        logging.warning(
            "%d of %d classes have no training example, because the hash holds out all of theirs: "
            "%s%s; add examples, or write train and validation files",
            len(unseen), len(labels), shown, more,
        )  # fmt: skip


def _labels(
    examples: shards.Shards, indices: Iterable[int]
) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Counts the labels. Also returns the (label, place) of lines that may be headings."""
    counts, headings, quoted = Counter(), [], []
    for file, line in map(examples.at, indices):
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


def _refuse(data: DataConfig, examples: shards.ShardedExamples) -> NoReturn:
    """Raises the problem of the first record, because none can be used."""
    try:
        examples[0]
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
        if "\ufeff" in (label := self.lines.text(line, "label", str(label))):
            raise self.lines.bad(
                line, f"label {label!r} has a byte order mark, as between joined files; remove it"
            )
        return {"label": label, **texts}


class LabelledExamples(Sequence):
    """Examples with their labels as indices into the class names."""

    def __init__(
        self, examples: shards.ShardedExamples, numbers: Mapping[str, int], has_pairs: bool
    ):
        self._examples, self._numbers, self._has_pairs = examples, numbers, has_pairs

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        file, line = self._examples.at(index)
        record, bad = file[line], file.lines.bad
        if record["label"] not in self._numbers:
            raise bad(line, f"label {record['label']!r} does not occur in training")
        if ("text_pair" in record) != self._has_pairs:
            has = "has a" if self._has_pairs else "has no"
            raise bad(line, f"the first record {has} second text, and this one differs")
        return {**record, "label": self._numbers[record["label"]]}
