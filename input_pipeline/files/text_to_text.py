"""Tasks put as text to text, as for T5: JSONL with the keys `inputs`, `targets` and `task`.

data.path is a directory with <split>.jsonl[.gz]. Each task is a source of its own, with its own
held-out set, if there are examples of it in that split.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from input_pipeline.config import DataConfig
from input_pipeline.files.reading import Lines, find_split
from input_pipeline.preparation import refuse_bad_records
from input_pipeline.source import BadRecordError, Example, Splits, content_digest
from schema import ConfigError


def load(data: DataConfig) -> Mapping[str, Splits]:
    lines = {
        split: Lines(find_split(data.path, split, [".jsonl"]))
        for split in (data.train_split, data.eval_split)
    }
    by_task = {split: _by_task(each, data.max_bad_records) for split, each in lines.items()}
    train, held_out = by_task[data.train_split], by_task[data.eval_split]
    unknown = sorted(held_out.keys() - train.keys())
    if unknown:
        raise ConfigError(
            f"{lines[data.eval_split].path} has the task {unknown[0]!r}, "
            f"which {lines[data.train_split].path} has not"
        )
    splits = {}
    for task, examples in sorted(train.items()):
        evals = {data.eval_split: held_out[task]} if task in held_out else {}
        digest = content_digest([task, *(each.digest for each in lines.values())])
        description = {"train_pairs": len(examples)}
        splits[task] = Splits("pairs", examples, evals, (), description, digest)
    return splits


def _by_task(lines: Lines, max_bad_records: int) -> dict[str, "Pairs"]:
    """The lines of each task, if at most so many others name none; those are logged."""
    numbers: dict[str, list[int]] = {}
    bad = []
    for index in range(len(lines)):
        try:
            task = lines.json(index, "task")["task"]
        except BadRecordError as error:
            bad.append(str(error))
            refuse_bad_records(bad, max_bad_records)
            logging.warning("skipped: %s", error)
            continue
        numbers.setdefault(str(task), []).append(index)
    if not numbers:
        raise ConfigError(
            f"{lines.path} has no line that names its task; "
            'it needs lines such as {"task": ..., "inputs": ..., "targets": ...}'
        )
    return {task: Pairs(lines, np.array(indices)) for task, indices in numbers.items()}


class Pairs(Sequence):
    def __init__(self, lines: Lines, indices: np.ndarray):
        self._lines, self._indices = lines, indices

    def __len__(self):
        return len(self._indices)

    def __getitem__(self, index: int) -> Example:
        line = int(self._indices[index])
        record = self._lines.json(line, "inputs", "targets", "task")
        return {
            "source": self._lines.text(line, "inputs", record["inputs"]),
            "target": self._lines.text(line, "targets", record["targets"]),
            "task": record["task"],
        }
