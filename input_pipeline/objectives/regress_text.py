"""Regression: a number for a text, or for a pair of texts, such as their similarity."""

from functools import partial

import numpy as np

from input_pipeline.objectives.affixes import between_separators
from input_pipeline.objectives.classify_text import text_sequence
from input_pipeline.objectives.objective import LossTerm, Objective, TaskInputs, TaskSpec
from input_pipeline.rows import Fields, Row
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def regress_text(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """The score of a text, or of a pair of texts, with special tokens around them."""
    del rng
    texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
    answer = {"scores": np.float32(row["score"]), "weights": np.float32(1)}
    return {**between_separators(texts, tokenizer), **answer}


class RegressText(Objective):
    name = "regress_text"
    description = "a number for a text, or for a pair of texts"
    families = ("encoder", "decoder")
    kinds = ("scored",)
    head = "regressor"
    terms = (LossTerm("scores", "scores", is_squared_error=True),)
    framing = ("cls", "sep")

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        texts, sequence = text_sequence(given)
        fields = partial(regress_text, tokenizer=given.tokenizer)
        return TaskSpec(fields, FeatureSpec(texts, ("score",)), (sequence,))
