"""Conversations with a model: prompts by its chat template, and a history of turns."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from checkpointing.loaded_run import LoadedRun
from experiment.schema import ConfigError
from experiment.untrusted_files import parse_json
from input_pipeline.chat_encoding import ChatFormat, chat_format, checked_messages
from input_pipeline.chat_template import DEFAULT, TODAY, ChatTemplateError
from input_pipeline.rows import Fields
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer

RESET = "/reset"  # begins a new conversation


class ChatPrompts:
    """Turns lines into prompts. A line is a JSON object with `messages` or `prompt`, or a list."""

    def __init__(self, format: ChatFormat, system: str = "", *, strict: bool = False):
        self._format, self._system, self._strict = format, system, strict
        self.unknown: dict[str, str] = {}  # name of a line -> its first unknown part

    def __call__(self, line: str, name: str) -> Fields:
        """The fields of a conversation's row; `name` is its name in error messages."""
        try:
            messages = _asked(line, self._system)
            inputs = self._format.prompt(messages)
        except ChatTemplateError as error:
            raise ConfigError(f"{name}: the chat template: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        for message in messages:
            if unspelt := self._format.tokenizer.unspelt(message["content"]):
                if self._strict:
                    raise ConfigError(
                        f"{name}: the vocabulary of the model's tokenizer cannot spell "
                        f"{unspelt!r}; replace it, or leave --strict out"
                    )
                self.unknown.setdefault(name, unspelt)
        if not len(inputs):
            raise ConfigError(f"{name}: the chat template writes nothing, so there is no prompt")
        return {"inputs": inputs.astype(np.int32)}


def chat_format_of(model: LoadedRun) -> ChatFormat:
    """The model's chat format, with the tokens that end a turn among the tokenizer's ends.

    The template is the one of training, or the tokenizer's own. Dates in it are today's.
    """
    task, data = model.experiment.task, model.experiment.data
    spec = task.objective_spec
    is_continued = spec.head == "language_model" and not spec.has_source
    if not is_continued or data.example_kind == "pairs":
        raise ConfigError(
            f"--chat needs a decoder that continues text, and this model has task.objective="
            f"{task.objective} and examples that are {data.example_kind}; leave --chat out"
        )
    if isinstance(model.tokenizer, IdTokenizer):
        raise ConfigError("--chat needs text, and this model came without a tokenizer")
    was_trained = data.example_kind in ("chats", "preferences")
    options = {**data.options, "date": TODAY} if was_trained else {"date": TODAY}
    format = chat_format(model.tokenizer, options)
    if format.template.source == DEFAULT and not was_trained:
        logging.warning(
            "this model has no chat template and was not trained on conversations; its prompts "
            "have the simple template of docs/data.md"
        )
    tokenizer = model.tokenizer.with_more_ends(format.end_ids())
    return ChatFormat(tokenizer, format.template)


def converse(
    turns: Iterable[str],
    answer: Callable[[str, int], Iterator[str]],
    show: Callable[[str], None],
    system: str = "",
) -> list[dict[str, str]]:
    """Shows the answer to each turn, piece by piece; returns the messages of the conversation.

    answer: from a prompt, as ChatPrompts reads it, and the number of the turn. A turn that cannot
    be answered, such as one that no longer fits, is taken back.
    """
    first = [{"role": "system", "content": system}] if system else []
    messages = list(first)
    for number, turn in enumerate(turns):
        if not turn.strip():
            continue
        if turn.strip() == RESET:
            messages = list(first)
            continue
        asked = [*messages, {"role": "user", "content": turn}]
        pieces = []
        try:
            for piece in _without_space_before(answer(json.dumps(asked), number)):
                pieces.append(piece)
                show(piece)
        except ConfigError as error:
            logging.warning("%s; %s begins a new conversation", error, RESET)
            continue
        show("\n")
        # A template may refuse an empty answer, so it is not part of the history.
        text = "".join(pieces).strip()
        messages = [*asked, {"role": "assistant", "content": text}] if text else messages
    return messages


def _without_space_before(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces without white space at the beginning, which belongs to the template."""
    begun = False
    for piece in pieces:
        piece = piece if begun else piece.lstrip()
        begun = begun or bool(piece)
        if piece:
            yield piece


def _asked(line: str, system: str) -> list[dict[str, str]]:
    """The messages of a line, which end with a question; raises ConfigError."""
    try:
        given: Any = parse_json(line)
    except ValueError as error:
        raise ConfigError(
            f'not JSON ({error}); write {{"messages": [{{"role": "user", "content": ...}}]}}'
        ) from error
    if isinstance(given, dict):
        if ("messages" in given) == ("prompt" in given):
            raise ConfigError("must have 'messages' or 'prompt'")
        given = given.get("messages", given.get("prompt"))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    messages = checked_messages(given)
    if messages[-1]["role"] == "assistant":
        raise ConfigError("the last message is the assistant's, so there is nothing to answer")
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages
