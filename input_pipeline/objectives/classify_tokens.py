"""Classification of tokens: a tag for every word, such as the names in a text.

The words are joined by spaces. The first token of a word has its tag; no other token counts.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np

from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec, refuse_short
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.sources.base import Example
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def encode_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The ids of words with spaces between them, and at the first token of each word its number.

    Numbers begin at 1; other tokens have 0. A word that becomes no token has no number.
    """
    ids, spans = tokenizer.encode_with_spans(" ".join(words))
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    # The last character of a token, since the first may be the space before a word.
    numbers = np.searchsorted(starts, spans[:, 1] - 1, side="right")
    numbers = np.where(spans[:, 1] > spans[:, 0], numbers, 0)
    before = np.concatenate([[0], np.maximum.accumulate(numbers)[:-1]])[: len(numbers)]
    return ids, np.where(numbers > before, numbers, 0)


@dataclasses.dataclass(frozen=True)
class TagEncoder:
    """Words and their tags -> ids, and 1 + the tag at the first token of each word, else 0."""

    tokenizer: Tokenizer
    key = "first token of each word"

    def __call__(self, example: Example) -> dict[str, np.ndarray]:
        ids, numbers = encode_words(example["words"], self.tokenizer)
        tags = np.concatenate([[0], np.asarray(example["tags"]) + 1])
        return {"text": ids, "tags": tags[numbers]}


def framed(ids: np.ndarray, tags: np.ndarray, tokenizer: Tokenizer) -> Fields:
    """A row with special tokens around the text; `tags` count from 1, and 0 is none."""
    row = tokenizer.encoder_template.with_special_tokens([ids])
    targets = np.zeros(len(row["inputs"]), np.int64)
    targets[row["is_text"]] = tags
    return {
        "inputs": row["inputs"],
        "targets": np.maximum(targets - 1, 0),
        "weights": (targets > 0).astype(np.float32),
    }


def classify_tokens(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, keep_end: bool
) -> Fields:
    """The tag of each word of a text; both may be longer than the row."""
    del rng
    size = len(row["text"])
    tags = row["tags"][len(row["tags"]) - size :] if keep_end else row["tags"][:size]
    return framed(row["text"], tags, tokenizer)


class ClassifyTokens(Objective):
    name = "classify_tokens"
    description = "the tag of each word of a text"
    families = ("encoder",)
    kinds = ("tagged",)
    head = "token_classifier"
    framing = ("cls", "sep")

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        tokenizer = given.tokenizer
        added = tokenizer.encoder_template.added(1)
        refuse_short("length", given.data.length, added + 1, "cls, sep and text")
        keep_end = tokenizer.truncates_left
        sequence = SequenceSpec(("text",), given.data.length, added, keep_end=keep_end)
        fields = partial(classify_tokens, tokenizer=tokenizer, keep_end=keep_end)
        features = FeatureSpec(("text", "tags"), encoder=TagEncoder(tokenizer))
        return TaskSpec(fields, features, (sequence,))
