"""Preferences: a chosen and a rejected answer to one prompt, for direct preference optimization."""

import numpy as np

from input_pipeline.chat_encoding import PreferenceEncoder, chat_format
from input_pipeline.objectives.objective import (
    LossTerm,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.objectives.shifting import shifted
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.token_table import FeatureSpec

ANSWERS = ("chosen_", "rejected_")


def dpo(row: Row, rng: np.random.Generator) -> Fields:
    """Both answers in one row, each after its own copy of the prompt, in segments 1 and 2."""
    del rng
    parts = [shifted((), row[f"{which}chat"], 0) for which in ANSWERS]
    sizes = [len(part["inputs"]) for part in parts]
    pairs = zip(ANSWERS, sizes, strict=True)
    is_answer = [row[f"{which}is_answer"][1 : size + 1] for which, size in pairs]
    nothing = [np.zeros(size, np.int32) for size in sizes]
    return {
        "inputs": np.concatenate([part["inputs"] for part in parts]),
        "targets": np.concatenate([part["targets"] for part in parts]),
        "weights": np.concatenate([is_answer[0], nothing[1]]),
        "rejected_weights": np.concatenate([nothing[0], is_answer[1]]),
        "segment_ids": np.repeat([1, 2], sizes),
        "positions": np.concatenate([np.arange(size) for size in sizes]),
    }


class DPO(Objective):
    name = "dpo"
    description = "which of two answers is better, by the change from a frozen reference"
    families = ("decoder",)
    kinds = ("preferences",)
    head = "language_model"
    terms = (LossTerm("pairs", "targets"),)
    keys = ("dpo_beta",)
    framing = ("bos",)
    needs_reference = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        refuse_short("length", given.data.length, 4, "two answers with their prompts")
        encoder = PreferenceEncoder(chat_format(given.tokenizer, given.data.options))
        texts = tuple(f"{which}chat" for which in ANSWERS)
        masks = tuple(f"{which}is_answer" for which in ANSWERS)
        sequence = SequenceSpec(texts, given.data.length, -2)
        features = FeatureSpec((*texts, *masks), encoder=encoder)
        return TaskSpec(dpo, features, (sequence,), needs_segments=False)
