"""Questions about texts: <split>.jsonl with the keys `question`, `context` and `answer`.

    {"question": "Who wrote it?", "context": "Ada wrote it.", "answer": "Ada"}

An answer is a part of the context, or a list of such parts that are all right. `answer_start` is
the first character of each, if it is not the first place with this text. An empty list is a
question without an answer. `answers`, an object with lists `text` and `answer_start` as in SQuAD,
may take the place of both keys.
"""

from collections.abc import Sequence

from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import open_splits


def load(data: DataConfig) -> Splits:
    """The questions at data.path."""
    found = open_splits(data, Questions, [".jsonl"], key="text_pair")
    description = {"train_questions": len(found.train), "held_out_questions": len(found.eval)}
    description |= found.facts
    digest = content_digest(["questions", *found.digests])
    evals = {data.eval_split: found.eval}
    return Splits("questions", found.train, evals, (), description, digest, text_pairs=True)


SOURCE = Source(
    "question_files", load, "questions", "path", tab_separates_texts=True, for_imports=True
)


class Questions(Sequence):
    """The questions of one file, by line number."""

    def __init__(self, lines: Lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, line: int) -> Example:
        record = self.lines.json(line, "question", "context")
        texts = {
            name: self.lines.text(line, key, record[key])
            for name, key in (("text", "question"), ("text_pair", "context"))
        }
        answers = self._answers(line, record, texts["text_pair"])
        return {**texts, "answers": answers, "place": f"{self.lines.path}:{line + 1}"}

    def _answers(self, line: int, record: dict, context: str) -> list[tuple[int, int]]:
        """The first character and the end of each answer in the context."""
        given = record.get("answers")
        if given is None and "answer" not in record:
            raise self.lines.bad(line, "lacks 'answer'")
        if given is None:
            given = {"text": record["answer"], "answer_start": record.get("answer_start")}
        if not isinstance(given, dict) or "text" not in given:
            raise self.lines.bad(line, "answers must be an object with text and answer_start")
        texts, starts = given["text"], given.get("answer_start")
        texts = texts if isinstance(texts, list) else [texts]
        starts = [None] * len(texts) if starts is None else starts
        starts = starts if isinstance(starts, list) else [starts]
        if len(starts) != len(texts):
            raise self.lines.bad(line, f"{len(texts)} answers have {len(starts)} answer_start")
        return [
            self._place(line, context, text, start)
            for text, start in zip(texts, starts, strict=True)
        ]

    def _place(self, line: int, context: str, text: object, start: object) -> tuple[int, int]:
        text = self.lines.text(line, "answer", text)
        at = context.find(text) if start is None else start
        if type(at) is not int or at < 0 or context[at : at + len(text)] != text:
            where = "" if start is None else f" at answer_start={start}"
            raise self.lines.bad(line, f"the context does not have the answer {text!r}{where}")
        return at, at + len(text)
