"""Scored texts: <split>.tsv (number, tab, text, and optionally a tab and a second text), or
<split>.jsonl with the keys `score`, `text` and optionally `text_pair`; plain or gzip.
"""

import math
from collections.abc import Sequence

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
from input_pipeline.sources.files.shards import ShardedExamples, open_splits


def load(data: DataConfig) -> Splits:
    """The scored texts at data.path."""
    found = open_splits(data, ScoredLines, [".tsv", ".jsonl"], key="text")
    first = next(readable_examples(found.train), None)
    if first is None:
        raise ConfigError(
            f"no line of the split {data.train_split!r} of {data.path} can be used; each needs a "
            "number and a text"
        )
    has_pairs = "text_pair" in first
    train, evaluated = (OfOneForm(part, has_pairs) for part in (found.train, found.eval))
    description = {"train_texts": len(train), "held_out_texts": len(evaluated)}
    description |= found.facts
    digest = content_digest(["scored", *found.digests])
    evals = {data.eval_split: evaluated}
    return Splits("scored", train, evals, (), description, digest, text_pairs=has_pairs)


SOURCE = Source("scored_files", load, "scored", "path", tab_separates_texts=True, for_imports=True)


class ScoredLines(Sequence):
    """The lines of a file, parsed: score, text, and text_pair if the line has it."""

    def __init__(self, lines: Lines):
        self.lines = lines
        self._is_json = lines.path.name.removesuffix(".gz").endswith(".jsonl")

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        if self._is_json:
            record = self.lines.json(line, "score", "text")
            score = record["score"]
            columns = [record[key] for key in ("text", "text_pair") if key in record]
        else:
            score, *columns = self.lines[line].split("\t")
            if not 1 <= len(columns) <= 2:
                raise self.lines.bad(
                    line, f"{1 + len(columns)} columns; needs number, tab, text (or two texts)"
                )
        texts = dict(zip(("text", "text_pair"), columns, strict=False))
        for key, text in texts.items():
            self.lines.text(line, key, text)
        return {"score": self._number(line, score), **texts}

    def _number(self, line: int, score: object) -> float:
        try:
            number = math.nan if isinstance(score, bool) else float(score)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.lines.bad(line, f"the score {score!r} is no number")
        return number


class OfOneForm(Sequence):
    """Examples that all have one text, or all have two."""

    def __init__(self, examples: ShardedExamples, has_pairs: bool):
        self._examples, self._has_pairs = examples, has_pairs

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        file, line = self._examples.at(index)
        example = file[line]
        if ("text_pair" in example) != self._has_pairs:
            has = "has a" if self._has_pairs else "has no"
            raise file.lines.bad(line, f"the first record {has} second text, and this one differs")
        return example
