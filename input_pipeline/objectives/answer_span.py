"""Extractive question answering: the first and the last token of an answer in a context.

A context that is too long for a row becomes several rows, windows that overlap. In a window without
the answer, both places are the first token of the row, [cls], as in BERT's treatment of SQuAD.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial

import numpy as np

from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec, refuse_short
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.sources.base import BadRecordError, Example
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer

SMALLEST_ROOM = 2  # ids of a question and of a context


@dataclasses.dataclass(frozen=True)
class WindowCutter:
    """Cuts a context into windows; a row has room for `room` ids of a question and a window.

    Of a long question, the first half of the room is read. Windows share `overlap` ids with the
    next one, but at most half of their own.
    """

    room: int
    overlap: int

    def question(self, ids: np.ndarray) -> np.ndarray:
        """The ids of a question that are read."""
        return ids[: self.room // 2]

    def windows(self, question: int, context: int) -> Iterator[tuple[int, int]]:
        """The first id and the end of each window, from the numbers of ids that are read."""
        size = self.room - question
        step = size - min(self.overlap, size // 2)
        first = 0
        while True:
            yield first, min(first + size, context)
            if first + size >= context:
                return
            first += step


def token_span(spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The first and the last of the tokens with text between two places; (-1, -1): none has.

    `spans` has the first character and the end of each token, (n, 2).
    """
    touches = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end))
    return (int(touches[0]), int(touches[-1])) if len(touches) else (-1, -1)


@dataclasses.dataclass(frozen=True)
class QuestionEncoder:
    """A question and its context -> the ids of each window, and where the answer is in it.

    `start` and `end` count from the first id of the window; -1: the window lacks the answer.
    `first` is the number of ids of the context before the window.
    """

    tokenizer: Tokenizer
    cutter: WindowCutter
    unanswerable: bool

    @property
    def key(self) -> str:
        return f"windows of {self.cutter}, unanswerable={self.unanswerable}"

    def __call__(self, example: Example) -> list[dict]:
        if not (example["answers"] or self.unanswerable):
            raise BadRecordError(
                f"{example['place']}: no answer; set task.unanswerable=True to learn that some "
                "questions have none"
            )
        question = self.cutter.question(self.tokenizer.encode(example["text"]))
        context, spans = self.tokenizer.encode_with_spans(example["text_pair"])
        start, end = token_span(spans, *example["answers"][0]) if example["answers"] else (-1, -1)
        found = []
        for first, stop in self.cutter.windows(len(question), len(context)):
            is_inside = first <= start and 0 <= end < stop
            places = (start - first, end - first) if is_inside else (-1, -1)
            ids = {"text": question, "text_pair": context[first:stop]}
            found.append({**ids, "first": first, "start": places[0], "end": places[1]})
        return found


def framed(question: np.ndarray, context: np.ndarray, tokenizer: Tokenizer) -> tuple[Fields, int]:
    """A row with special ids around both texts, and the column where the context begins."""
    row = tokenizer.encoder_template.with_special_tokens([question, context])
    del row["is_text"]
    behind = len(tokenizer.encoder_template.pair[2])
    return row, len(row["inputs"]) - behind - len(context)


def answer_span(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """The columns of the answer's first and last token, and those of the context."""
    del rng
    fields, column = framed(row["text"], row["text_pair"], tokenizer)
    places = [column + row[key] if row[key] >= 0 else 0 for key in ("start", "end")]
    return {
        **fields,
        "targets": np.array(places, np.int32),
        "weights": np.ones(2, np.float32),
        "context_start": np.int32(column),
        "context_end": np.int32(column + len(row["text_pair"])),
        "context_first": np.int32(row["first"]),
    }


def window_cutter(tokenizer: Tokenizer, length: int, overlap: int) -> WindowCutter:
    """The cutter for rows of `length` columns; raises ConfigError if they are too short."""
    added = tokenizer.encoder_template.added(2)
    refuse_short("length", length, added + SMALLEST_ROOM, "cls, sep, a question and a context")
    return WindowCutter(length - added, overlap)


class AnswerSpan(Objective):
    name = "answer_span"
    description = "the part of a context that answers a question"
    families = ("encoder",)
    kinds = ("questions",)
    head = "span"
    keys = ("window_overlap", "answer_tokens", "unanswerable")
    framing = ("cls", "sep")

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        tokenizer, masking = given.tokenizer, given.masking
        cutter = window_cutter(tokenizer, given.data.length, masking.window_overlap)
        added = given.data.length - cutter.room
        texts = ("text", "text_pair")
        encoder = QuestionEncoder(tokenizer, cutter, masking.unanswerable)
        features = FeatureSpec(texts, ("first", "start", "end"), encoder=encoder)
        sequence = SequenceSpec(texts, given.data.length, added)
        fields = partial(answer_span, tokenizer=tokenizer)
        return TaskSpec(fields, features, (sequence,), predictions=2)
