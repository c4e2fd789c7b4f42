"""Recommendation: masked items of a basket or a history, from its other items (BERT4Rec).

In training, a random share of the items is masked. In evaluation, the last item is. The model
computes logits at masked positions only: with many items, the logits are most of the work.
"""

from functools import partial

import numpy as np

from input_pipeline.objectives.objective import (
    MarkTrainingRows,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer

MOST_MASKED = 4  # items of a row
LAST_ONLY = 0.5  # share of the training rows of ordered items in which only the last is masked


def masked_items(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, noise_rate: float, ordered: bool
) -> Fields:
    """[cls] items [sep] with some items masked: at least one, at most MOST_MASKED, and not all.

    Items that training does not know are left out, unless they are masked: then they are targets
    that the model cannot find.
    """
    items, masked = row["text"], np.array([len(row["text"]) - 1])
    if "is_training" in row and not (ordered and rng.random() < LAST_ONLY):
        most = min(MOST_MASKED, max(1, len(items) - 1))
        count = min(most, 1 + rng.binomial(max(0, len(items) - 2), noise_rate))
        masked = rng.permutation(len(items))[:count]
    is_masked = np.isin(np.arange(len(items)), masked)
    is_kept = is_masked | (items != tokenizer.unknown_id)
    fields = tokenizer.encoder_template.with_special_tokens([items[is_kept]])
    inputs, predicted = fields["inputs"], np.flatnonzero(fields["is_text"])[is_masked[is_kept]]
    targets = inputs[predicted]
    inputs[predicted] = tokenizer.mask_id
    weights = np.ones(len(predicted))
    return {"inputs": inputs, "predicted": predicted, "targets": targets, "weights": weights}


class MaskedItems(Objective):
    name = "masked_items"
    description = "masked items of a basket or a history from its other items"
    families = ("encoder",)
    kinds = ("items",)
    head = "masked_language_model"
    specials = ("mask",)
    framing = ("cls", "sep")
    ranks_items = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        added = given.tokenizer.encoder_template.added(1)
        refuse_short("length", given.data.length, added + 2, "cls, sep and two items")
        fields = partial(
            masked_items,
            tokenizer=given.tokenizer,
            noise_rate=given.masking.rate,
            ordered=given.data.source_options.ordered,
        )
        sequence = SequenceSpec(("text",), given.data.length, added)
        return TaskSpec(
            fields, given.text, (sequence,), augment=MarkTrainingRows(), predictions=MOST_MASKED
        )
