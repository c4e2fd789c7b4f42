"""Text-to-text tasks, as for T5: JSONL with the keys `inputs`, `targets` and `task`.

data.path has <split>.jsonl[.gz], or shards of it, or files without splits; see splits.py. Each task
is a separate source. It has an evaluation set if the evaluation split has examples of it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.preparation import refuse_bad_records
from input_pipeline.sources.base import (
    BadRecordError,
    Example,
    Source,
    Splits,
    content_digest,
)
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import SelectedExamples, ShardedExamples, open_splits


def load(data: DataConfig) -> Mapping[str, Splits]:
    """The splits of each task, by name."""
    found = open_splits(data, TextToTextPairs, [".jsonl"], key="source")
    train = _by_task(data, data.train_split, found.train)
    evaluation = _by_task(data, data.eval_split, found.eval)
    for task in sorted(evaluation.keys() - train.keys()):
        pairs, line = evaluation[task].at(0)
        raise ConfigError(
            f"{pairs.lines.path}:{line + 1}: the task {task!r} does not occur in training; add "
            "lines of it there, or remove these"
        )
    splits = {}
    for task, examples in sorted(train.items()):
        evals = {data.eval_split: evaluation[task]} if task in evaluation else {}
        digest = content_digest([task, *found.digests])
        description = {"train_pairs": len(examples), **found.facts}
        splits[task] = Splits("pairs", examples, evals, (), description, digest)
    return splits


SOURCE = Source("text_to_text_files", load, "pairs", "path", has_tasks=True)


def _by_task(
    data: DataConfig, split: str, examples: ShardedExamples
) -> dict[str, SelectedExamples]:
    """The examples of each task; raises ConfigError if too many examples name no task."""
    numbers: dict[str, list[int]] = {}
    bad = []
    for index in range(len(examples)):
        pairs, line = examples.at(index)
        try:
            named = pairs.lines.json(line, "task")["task"]
            task = pairs.lines.text(line, "task", str(named))
        except BadRecordError as error:
            bad.append(str(error))
            refuse_bad_records(bad, data.max_bad_records)
            logging.warning("skipped: %s", error)
            continue
        numbers.setdefault(task, []).append(index)
    if not numbers:
        raise ConfigError(
            f"the split {split!r} of {data.path} has no line that names its task; "
            'it needs lines such as {"task": ..., "inputs": ..., "targets": ...}'
        )
    return {
        task: SelectedExamples(examples, np.array(indices)) for task, indices in numbers.items()
    }


class TextToTextPairs(Sequence):
    """The pairs of one file, by line number."""

    def __init__(self, lines: Lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        record = self.lines.json(line, "inputs", "targets", "task")
        return {
            "source": self.lines.text(line, "inputs", record["inputs"]),
            "target": self.lines.text(line, "targets", record["targets"]),
            "task": record["task"],
        }
