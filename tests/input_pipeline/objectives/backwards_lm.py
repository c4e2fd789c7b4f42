"""A toy objective, for tests: a language model that reads every text from its end."""

from functools import partial

from input_pipeline.objectives.objective import Objective, TaskSpec
from input_pipeline.objectives.shifting import added_by_shift, next_token
from input_pipeline.rows import SequenceSpec


def backwards_lm(row, rng, *, tokenizer):
    """Predicts every id from the ids after it."""
    del rng
    return next_token(row["text"][::-1], 0, tokenizer)


class BackwardsLM(Objective):
    name = "backwards_lm"
    description = "every token from the tokens after it"
    families = ("decoder",)
    kinds = ("documents",)
    head = "language_model"
    framing = ("bos",)

    def task_spec(self, given):
        fields = partial(backwards_lm, tokenizer=given.tokenizer)
        sequence = SequenceSpec(("text",), given.data.length, added_by_shift(given.tokenizer))
        return TaskSpec(fields, given.text, (sequence,), needs_segments=False)
