"""Sequences of items, such as baskets: <split>.tsv or <split>.txt, plain or gzip, one on a line.

A line is a name, a tab and the items, or just the items. Splits may be in shards, or files may have
no splits; see splits.py. The vocabulary, data.tokenizer=item, has one id for each item of training.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import open_splits

ENDINGS = (".tsv", ".txt")
FEWEST = 2  # one item is predicted from the others


@dataclasses.dataclass(frozen=True)
class ItemOptions:
    """`data.options` of this source."""

    separator: str = " "  # between items; " ": any white space
    # Whether the order of items has a meaning, as in a history. If not, an item counts once.
    ordered: bool = False

    def problems_with(self, data: DataConfig) -> Iterator[str]:
        """Yields problems with the options, and with other keys of the `data` section."""
        if not self.separator or "\n" in self.separator:
            yield (
                f"data.options.separator={self.separator!r} cannot separate items on a line; "
                "set it to what is between two items, such as ','"
            )
        if data.tokenizer in ("byte", "bpe", "wordpiece", "unigram", "word"):
            yield (
                f"data.tokenizer={data.tokenizer} splits text, and data.source=item_files has "
                "items, each with one id; set data.tokenizer=item"
            )


class ItemLines(Sequence):
    """The sequences of one file, by line number; items are joined by the separator."""

    def __init__(self, lines: Lines, options: ItemOptions):
        self.lines, self._options = lines, options

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        separator = self._options.separator
        name, tab, text = self.lines[line].partition("\t")
        if separator == "\t":
            name, text = "", self.lines[line]
        elif not tab:
            name, text = "", name
        items = (
            text.split() if separator == " " else [each.strip() for each in text.split(separator)]
        )
        if not all(items):
            raise self.lines.bad(line, f"an item is empty: two separators {separator!r} in a row")
        if not self._options.ordered:
            items = list(dict.fromkeys(items))
        if len(items) < FEWEST:
            raise self.lines.bad(
                line, f"{len(items)} items; one is predicted from the others, so it needs {FEWEST}"
            )
        return {"text": separator.join(items), "name": name}


@dataclasses.dataclass(frozen=True)
class MakeItemLines:
    """Opens the sequences of a file; worker processes receive it, so it is not a closure."""

    options: ItemOptions

    def __call__(self, lines: Lines) -> ItemLines:
        return ItemLines(lines, self.options)


def load(data: DataConfig) -> Splits:
    """The sequences at data.path; raises ConfigError if they cannot be used."""
    options = data.source_options
    found = open_splits(data, MakeItemLines(options), ENDINGS, key="text")
    sizes = {"train_sequences": len(found.train), "held_out_sequences": len(found.eval)}
    return Splits(
        "items",
        found.train,
        {data.eval_split: found.eval},
        (),
        sizes | found.facts,
        content_digest([*found.digests, repr(options)]),
    )


SOURCE = Source("item_files", load, "items", "path", ItemOptions)
