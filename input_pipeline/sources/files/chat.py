"""Conversations: JSONL with `messages`, or with `prompt` and `completion`.

    {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
    {"prompt": "2 + 2?", "completion": "4"}

data.path has <split>.jsonl[.gz], or shards of it, or files without splits; see splits.py. The
tokenizer's chat template makes one text of a conversation: see input_pipeline/chat_encoding.py.
"""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any

from experiment.schema import ConfigError
from input_pipeline.chat_encoding import checked_messages
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import open_splits


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """`data.options` of this source."""

    chat_template: str = ""  # a Jinja template; "": the tokenizer's own, or else a simple one
    date: str = ""  # for templates that write today's date: YYYY-MM-DD

    def problems(self) -> Iterator[str]:
        if self.chat_template and "{" not in self.chat_template:
            yield (
                f"data.options.chat_template={self.chat_template!r} is not a template; give the "
                'text of one, such as "$(cat FILE)"'
            )
        try:
            datetime.date.fromisoformat(self.date or "2024-07-26")
        except ValueError:
            yield f"data.options.date={self.date!r} is not a date such as 2024-07-26"


def load(data: DataConfig) -> Splits:
    """The conversations at data.path."""
    found = open_splits(data, Conversations, [".jsonl"], key="record")
    description = {"train_chats": len(found.train), **found.facts}
    evals = {data.eval_split: found.eval}
    return Splits("chats", found.train, evals, (), description, content_digest(found.digests))


SOURCE = Source("chat_files", load, "chats", "path", options=ChatOptions)


class Conversations(Sequence):
    """The conversations of one file, by line number."""

    def __init__(self, lines: Lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        record = self.lines.json(line)
        try:
            messages = _messages(record)
        except ConfigError as error:
            raise self.lines.bad(line, str(error)) from error
        for number, message in enumerate(messages):
            self.lines.text(line, f"messages[{number}]", message["content"])
        if not any(message["role"] == "assistant" for message in messages):
            raise self.lines.bad(line, "no message is the assistant's, so there is none to learn")
        place = f"{self.lines.path}:{line + 1}"
        return {"messages": messages, "place": place, "record": json.dumps(messages)}


def _messages(record: dict[str, Any]) -> list[dict[str, str]]:
    """The messages of a record; raises ConfigError with the problem."""
    has_pair = {"prompt", "completion"} <= record.keys()
    if "messages" in record:
        if has_pair:
            raise ConfigError("has messages, and also prompt and completion; keep one of them")
        return checked_messages(record["messages"])
    if not has_pair:
        raise ConfigError("lacks 'messages', or 'prompt' and 'completion'")
    return [
        *checked_turns(record["prompt"], "user", "prompt"),
        *checked_turns(record["completion"], "assistant", "completion"),
    ]


def checked_turns(given: Any, role: str, what: str) -> list[dict[str, str]]:
    """The messages of a field that is a text of this role, or a list of messages."""
    if isinstance(given, list):
        return checked_messages(given, what)
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{what} is empty or not text")
    return [{"role": role, "content": given}]
