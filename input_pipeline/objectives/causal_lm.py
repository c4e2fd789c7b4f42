"""Causal language modelling, as for GPT."""

from functools import partial

import numpy as np

from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec
from input_pipeline.objectives.shifting import added_by_shift, next_token
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def causal_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Predicts every id from the ids before it."""
    del rng
    return next_token(row["text"], 0, tokenizer)


class CausalLM(Objective):
    name = "causal_lm"
    description = "every token from the tokens before it"
    families = ("decoder",)
    kinds = ("documents",)
    head = "language_model"
    framing = ("bos",)
    packable = True
    bits_per_byte = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        fields = partial(causal_lm, tokenizer=given.tokenizer)
        sequence = SequenceSpec(("text",), given.data.length, added_by_shift(given.tokenizer))
        return TaskSpec(fields, given.text, (sequence,), needs_segments=False)
