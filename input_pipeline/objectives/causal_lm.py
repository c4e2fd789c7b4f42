"""Causal language modelling, as for GPT; of conversations, only the assistant's tokens."""

from functools import partial

import numpy as np

from input_pipeline.chat_encoding import ConversationEncoder, chat_format
from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec, refuse_short
from input_pipeline.objectives.shifting import added_by_shift, next_token, shifted
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def causal_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Predicts every id from the ids before it."""
    del rng
    return next_token(row["text"], 0, tokenizer)


def causal_lm_chat(row: Row, rng: np.random.Generator) -> Fields:
    """Predicts the ids of the assistant's turns. The template has written all special ids."""
    del rng
    fields = shifted((), row["chat"], 0)
    is_answer = row["is_answer"][: len(row["chat"])]  # a conversation may be truncated
    return {**fields, "weights": is_answer[1:]}


class CausalLM(Objective):
    name = "causal_lm"
    description = "every token from the tokens before it; of conversations, the assistant's tokens"
    families = ("decoder",)
    kinds = ("documents", "chats")
    head = "language_model"
    framing = ("bos",)
    packable = True
    bits_per_byte = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        if given.kind == "chats":
            refuse_short("length", given.data.length, 2, "a question and an answer")
            encoder = ConversationEncoder(chat_format(given.tokenizer, given.data.options))
            sequence = SequenceSpec(("chat",), given.data.length, -1)
            features = FeatureSpec(("chat", "is_answer"), encoder=encoder)
            return TaskSpec(causal_lm_chat, features, (sequence,), needs_segments=False)
        fields = partial(causal_lm, tokenizer=given.tokenizer)
        sequence = SequenceSpec(("text",), given.data.length, added_by_shift(given.tokenizer))
        return TaskSpec(fields, given.text, (sequence,), needs_segments=False)
