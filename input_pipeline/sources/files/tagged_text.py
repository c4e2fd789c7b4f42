"""Tagged texts: <split>.jsonl with the keys `tokens` and `tags`, or <split>.conll.

    {"tokens": ["Ada", "wrote", "it"], "tags": ["B-PER", "O", "O"]}

A .conll file has a word and its tag on each line: the first column is the word, the last the tag.
Tabs are between the columns; in a line without a tab, spaces are. An empty line ends a text; lines
that begin with -DOCSTART- and comments of CoNLL-U, such as `# sent_id = 3`, are left out. Both are
read from gzip too. The tags are those of the training split, sorted.

Words have neither spaces nor tabs in them, since `generate.py` splits texts into words there. Other
white space, such as a no-break space, is a part of its word.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    Example,
    Source,
    Splits,
    content_digest,
    readable_examples,
)
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import ShardedExamples, Shards, open_splits

DOCUMENT = "-DOCSTART-"
COMMENT = re.compile(r"# [^\t]* = [^\t]*")
BETWEEN_WORDS = re.compile(r"[ \t]+")
COLUMNS = "columns 2"  # how .conll files are read, for the digest
SHOWN = 5  # tags in a message


def load(data: DataConfig) -> Splits:
    """The tagged texts at data.path."""
    counts: Counter[str] = Counter()

    def examine(examples: Shards) -> None:
        for example in readable_examples(examples):
            counts.update(example["tags"])

    found = open_splits(data, tagged_lines, [".jsonl", ".conll"], key="text", examine=examine)
    if not counts:
        raise ConfigError(
            f"no text of the split {data.train_split!r} of {data.path} can be used; each needs "
            "words and their tags"
        )
    tags = tuple(sorted(counts))
    numbers = {tag: number for number, tag in enumerate(tags)}
    train, evaluated = (Numbered(part, numbers) for part in (found.train, found.eval))
    description = {"train_texts": len(train), "held_out_texts": len(evaluated)}
    description |= found.facts
    parts = [found.train, found.eval]
    has_columns = any(len(part) and isinstance(part.at(0)[0], TaggedColumns) for part in parts)
    version = [COLUMNS] if has_columns else []
    digest = content_digest(["tagged", *version, *found.digests])
    return Splits("tagged", train, {data.eval_split: evaluated}, tags, description, digest)


SOURCE = Source("tagged_files", load, "tagged", "path", for_imports=True)


def words_of(text: str) -> list[str]:
    """The words of a text, which spaces and tabs separate; no other white space does."""
    return [word for word in BETWEEN_WORDS.split(text) if word]


def tagged_lines(lines: Lines) -> Sequence:
    """The texts of one file."""
    is_json = lines.path.name.removesuffix(".gz").endswith(".jsonl")
    return TaggedRecords(lines) if is_json else TaggedColumns(lines)


class TaggedRecords(Sequence):
    """The texts of a JSONL file, by line."""

    def __init__(self, lines: Lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        record = self.lines.json(line, "tokens", "tags")
        return checked(self.lines, line, record["tokens"], record["tags"])


class TaggedColumns(Sequence):
    """The texts of a file in columns, by number."""

    def __init__(self, lines: Lines):
        self.lines = lines

    @functools.cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        """The first line of each text, and the line after its last."""
        bounds, start = [], None
        for number in range(len(self.lines) + 1):
            line = self.lines[number] if number < len(self.lines) else ""
            if COMMENT.fullmatch(line):
                continue
            if line.strip(" \t") and not line.startswith(DOCUMENT):
                start = number if start is None else start
            elif start is not None:
                bounds.append((start, number))
                start = None
        return bounds

    def __len__(self):
        return len(self._bounds)

    def __getitem__(self, number: int) -> Example:
        start, stop = self._bounds[number]
        words, tags = [], []
        for line in range(start, stop):
            text = self.lines[line]
            if COMMENT.fullmatch(text):
                continue
            columns = [each.strip(" ") for each in text.split("\t")]
            columns = columns if len(columns) > 1 else words_of(text)
            if len(columns) < 2:
                raise self.lines.bad(line, "one column; a line needs a word and its tag")
            _check_word(self.lines, line, columns[0])
            words.append(columns[0])
            tags.append(self.lines.text(line, "the last column, the tag,", columns[-1]))
        return checked(self.lines, start, words, tags)


def checked(lines: Lines, line: int, words: object, tags: object) -> Example:
    """An example with words and tags; raises BadRecordError."""
    for name, values in (("tokens", words), ("tags", tags)):
        is_list = isinstance(values, list) and all(isinstance(each, str) for each in values)
        if not is_list or not values:
            raise lines.bad(line, f"{name} must be a list of texts")
    if len(words) != len(tags):
        raise lines.bad(line, f"{len(words)} tokens have {len(tags)} tags")
    for word in words:
        _check_word(lines, line, word)
    for tag in tags:
        lines.text(line, "tags", tag)
    return {"text": " ".join(words), "words": words, "tags": tags}


def _check_word(lines: Lines, line: int, word: str) -> None:
    if not word.strip() or words_of(word) != [word]:
        raise lines.bad(line, f"the token {word!r} is empty or has a space or a tab in it")
    lines.text(line, "tokens", word)


class Numbered(Sequence):
    """Examples with their tags as indices into the names of all tags."""

    def __init__(self, examples: ShardedExamples, numbers: Mapping[str, int]):
        self._examples, self._numbers = examples, numbers

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        file, line = self._examples.at(index)
        example = file[line]
        unknown = sorted(set(example["tags"]) - self._numbers.keys())
        if unknown:
            shown = ", ".join(unknown[:SHOWN])
            raise file.lines.bad(line, f"{shown}: does not occur in training")
        return {**example, "tags": [self._numbers[tag] for tag in example["tags"]]}
