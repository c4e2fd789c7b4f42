"""Preferences: JSONL with `prompt`, `chosen` and `rejected`.

    {"prompt": "2 + 2?", "chosen": "4", "rejected": "22"}

Each is a text, of the user and of the assistant, or a list of messages as in chat.py. data.path has
<split>.jsonl[.gz], or shards of it, or files without splits; see splits.py.
"""

import json
from collections.abc import Sequence

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files.chat import ChatOptions, checked_turns
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import open_splits

ROLES = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}


def load(data: DataConfig) -> Splits:
    """The pairs of answers at data.path."""
    found = open_splits(data, Preferences, [".jsonl"], key="record")
    description = {"train_preferences": len(found.train), **found.facts}
    evals = {data.eval_split: found.eval}
    digest = content_digest(["preferences", *found.digests])
    return Splits("preferences", found.train, evals, (), description, digest)


SOURCE = Source("preference_files", load, "preferences", "path", options=ChatOptions)


class Preferences(Sequence):
    """The pairs of answers of one file, by line number."""

    def __init__(self, lines: Lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        record = self.lines.json(line, *ROLES)
        try:
            example = {key: checked_turns(record[key], role, key) for key, role in ROLES.items()}
        except ConfigError as error:
            raise self.lines.bad(line, str(error)) from error
        for key, messages in example.items():
            for message in messages:
                self.lines.text(line, key, message["content"])
            if key != "prompt" and not any(each["role"] == "assistant" for each in messages):
                raise self.lines.bad(line, f"no message of {key} is the assistant's")
        if example["chosen"] == example["rejected"]:
            raise self.lines.bad(line, "chosen and rejected are equal, so neither is better")
        place = f"{self.lines.path}:{line + 1}"
        return {**example, "place": place, "record": json.dumps(example["prompt"])}
