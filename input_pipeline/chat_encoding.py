"""Conversations -> ids, and which of the ids the assistant writes.

The ids are those of the whole rendered text, as transformers' `apply_chat_template` gives them. A
template that marks answers with {% generation %} says what the assistant writes. For others, an
answer begins where the prompt for it ends, and it includes the token that ends the turn.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.chat_template import (
    DEFAULT,
    ChatTemplate,
    ChatTemplateError,
    Message,
    Span,
    named_template,
)
from input_pipeline.sources.base import BadRecordError, Example
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.subword import CHAT_TEMPLATE, CHAT_TOKENS, ROLES
from input_pipeline.tokenizers.tokenizer import Tokenizer

ROLE_NAMES = ("system", "user", "assistant")
_TRIAL = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """How conversations become ids: a tokenizer and its chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate

    def prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """The ids that an answer of the assistant follows; raises ChatTemplateError."""
        tokens = self._special_tokens(messages)
        rendered = self.template.render(messages, tokens, add_generation_prompt=True)
        return self._encode(rendered.text, tokens)[0]

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation; raises ChatTemplateError if ids in it have no text."""
        tokens = self._special_tokens(messages)
        if any(name.startswith("\x00") for name in tokens.values()):
            raise ChatTemplateError("the special tokens of this tokenizer have no text")
        return self.template.render(
            messages, tokens, add_generation_prompt=add_generation_prompt
        ).text

    def conversation(
        self, messages: Sequence[Message], given: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and True where the assistant writes; raises ChatTemplateError.

        The first `given` messages are the prompt: their answers do not count.
        """
        tokens = self._special_tokens(messages)
        rendered = self.template.render(messages, tokens)
        ids, spans = self._encode(rendered.text, tokens)
        is_answer = np.zeros(len(ids), bool)
        if rendered.answers is not None:
            past = sum(message["role"] == "assistant" for message in messages[:given])
            for start, stop in rendered.answers[past:]:
                is_answer |= _overlapping(spans, (start, stop))
            if not is_answer.any():
                raise ChatTemplateError("its {% generation %} blocks mark no token")
            return ids, is_answer
        is_control = self.tokenizer.is_control(ids)
        for start, through, stop in self._answers(messages, given, rendered.text, tokens):
            inside = np.flatnonzero(_overlapping(spans, (start, stop)))
            if through is None:  # the answer ends with the first control token after its text
                after = np.flatnonzero(is_control & (spans[:, 0] >= stop))
                if not len(after):
                    raise ChatTemplateError(_unmarked("no token ends the answer of"))
                inside = np.arange(inside[0], after[0] + 1)
            else:
                inside = _up_to_end(inside, is_control, spans, rendered.text)
            is_answer[inside] = True
        return ids, is_answer

    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a turn of the assistant; () if the template ends it with plain text."""
        try:
            ids, is_answer = self.conversation(_TRIAL)
        except ChatTemplateError:
            return ()
        last = ids[is_answer][-1:]
        return tuple(last[self.tokenizer.is_control(last)].tolist())

    def _answers(
        self, messages: Sequence[Message], given: int, text: str, tokens: Mapping[str, str]
    ) -> Iterator[tuple[int, int | None, int]]:
        """For each answer: its start; its end, or None if that is unknown; the end of its text."""
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number < given:
                continue
            before = self.template.render(messages[:number], tokens, add_generation_prompt=True)
            start = len(before.text)
            if not text.startswith(before.text):
                raise ChatTemplateError(_unmarked("the prompt is not the beginning of", number))
            through = self.template.render(messages[: number + 1], tokens).text
            if text.startswith(through):
                yield start, len(through), len(through)
                continue
            content = message["content"].strip()
            place = text.find(content, start)
            if place < 0:
                raise ChatTemplateError(_unmarked("it changes the text of", number))
            yield start, None, place + len(content)

    def _special_tokens(self, messages: Sequence[Message]) -> dict[str, str]:
        """Values of bos_token etc. in the template. An id without a text gets a placeholder."""
        if isinstance(self.tokenizer, IdTokenizer):
            raise ChatTemplateError("a model without a tokenizer has no text for it")
        tokenizer, published = self.tokenizer, getattr(self.tokenizer, "published", {})
        if CHAT_TOKENS in published:
            return {f"{role}_token": name for role, name in published[CHAT_TOKENS].items()}
        roles = [role for role in ROLES if getattr(tokenizer, f"{role}_id") is not None]
        if self.template.source == DEFAULT and not tokenizer.causal_prefix:
            roles.remove("bos")  # its texts begin without one
        contents, mark = [message["content"] for message in messages], "\x00"
        while any(mark in content for content in contents):
            mark += "\x00"
        return {f"{role}_token": _name(tokenizer, role) or f"{mark}{role}{mark}" for role in roles}

    def _encode(self, text: str, tokens: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and the first character and the end of each: (n,), (n, 2)."""
        placeholders = {name: key for key, name in tokens.items() if name.startswith("\x00")}
        if not placeholders:
            return self.tokenizer.encode_with_spans(text)
        found, place = [], 0
        for part in re.split(f"({'|'.join(map(re.escape, placeholders))})", text):
            if part in placeholders:
                role = placeholders[part].removesuffix("_token")
                ids = np.array([getattr(self.tokenizer, f"{role}_id")], np.int32)
                spans = np.array([(0, len(part))])
            else:
                ids, spans = self.tokenizer.encode_with_spans(part)
            found.append((ids, spans + place))
            place += len(part)
        return tuple(map(np.concatenate, zip(*found, strict=True)))


@dataclasses.dataclass(frozen=True)
class ConversationEncoder:
    """Encodes the examples of a source of conversations for a table of tokens."""

    format: ChatFormat

    @property
    def key(self) -> str:
        """What the ids depend on beside the tokenizer."""
        return f"{self.format.template.source} {self.format.template.date}"

    def __call__(self, example: Example) -> dict[str, np.ndarray]:
        return self._encoded(example["place"], example["messages"])

    def _encoded(
        self, place: str, messages: Sequence[Message], given: int = 0
    ) -> dict[str, np.ndarray]:
        try:
            ids, is_answer = self.format.conversation(messages, given)
        except ChatTemplateError as error:
            raise BadRecordError(f"{place}: the chat template: {error}") from error
        return {"chat": ids, "is_answer": is_answer.astype(np.int32)}


class PreferenceEncoder(ConversationEncoder):
    """Encodes examples with two answers. The fields of each begin with its name."""

    def __call__(self, example: Example) -> dict[str, np.ndarray]:
        prompt, fields = example["prompt"], {}
        for which in ("chosen", "rejected"):
            found = self._encoded(example["place"], [*prompt, *example[which]], len(prompt))
            fields |= {f"{which}_{name}": values for name, values in found.items()}
        return fields


def chat_format(tokenizer: Tokenizer, options: Mapping[str, Any]) -> ChatFormat:
    """The format that `data.options` and the tokenizer give; raises ConfigError."""
    published = getattr(tokenizer, "published", {}).get(CHAT_TEMPLATE)
    source = options.get("chat_template") or named_template(published) or DEFAULT
    return ChatFormat(tokenizer, ChatTemplate(source, options.get("date", "")))


def learnt_template(tokenizer: Tokenizer, kind: str, options: Mapping[str, Any]) -> str | None:
    """The template of a run's training, if it is not the tokenizer's own.

    `kind` is that of the run's examples, `options` are its `data.options`.
    """
    if kind not in ("chats", "preferences"):
        return None
    published = getattr(tokenizer, "published", {}).get(CHAT_TEMPLATE)
    return options.get("chat_template") or (None if published else DEFAULT)


def checked_messages(given: Any, what: str = "messages") -> list[dict[str, str]]:
    """The messages of a record, checked; raises ConfigError with the problem."""
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{what} must be a list of messages with role and content")
    return [_checked(message, f"{what}[{number}]") for number, message in enumerate(given)]


def _checked(message: Any, what: str) -> dict[str, str]:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ConfigError(f"{what} must have role and content")
    role, content = message["role"], message["content"]
    if role not in ROLE_NAMES:
        raise ConfigError(f"{what} has the role {role!r}; known are {', '.join(ROLE_NAMES)}")
    more = [key for key in message.keys() - {"role", "content"} if message[key] is not None]
    if more:
        raise ConfigError(f"{what} has {min(more)!r}, which is not read; remove it")
    if not isinstance(content, str) or not content.strip():
        raise ConfigError(f"{what}: the content of the {role} is empty or not text")
    return {"role": role, "content": content}


def _name(tokenizer: Tokenizer, role: str) -> str | None:
    """The text that encodes to the id of a role, or None."""
    name = getattr(tokenizer, "role_names", {}).get(role)
    is_read = name is not None and tokenizer.encode(name).tolist() == [
        getattr(tokenizer, f"{role}_id")
    ]
    return name if is_read else None


def _overlapping(spans: np.ndarray, span: Span) -> np.ndarray:
    start, stop = span
    return (spans[:, 0] < stop) & (spans[:, 1] > start)


def _up_to_end(
    inside: np.ndarray, is_control: np.ndarray, spans: np.ndarray, text: str
) -> np.ndarray:
    """The tokens of an answer without the white space after the token that ends the turn."""
    controls = inside[is_control[inside]]
    if not len(controls):
        return inside
    after = text[spans[controls[-1], 1] : spans[inside[-1], 1]]
    return inside if after.strip() else inside[inside <= controls[-1]]


def _unmarked(problem: str, number: int | None = None) -> str:
    which = "an answer" if number is None else f"messages[{number}]"
    return (
        f"{problem} {which}, so it cannot tell what the assistant writes; mark answers with "
        "{% generation %} and {% endgeneration %} in data.options.chat_template"
    )
