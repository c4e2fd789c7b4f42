"""Classification of texts, and of pairs of texts."""

import dataclasses
from functools import partial

import numpy as np

from input_pipeline.objectives.affixes import between_separators
from input_pipeline.objectives.objective import (
    LABELS,
    LossTerm,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.objectives.token_masking import masked
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class MaskHalfOfRows:
    """Marks a random half of the rows, in which classify_text then masks tokens."""

    needs_other_row: bool = False

    def __call__(self, row: Row, rng: np.random.Generator) -> Row:
        return {**row, "masked": rng.random() < 0.5}


def classify_text(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, noise_rate: float
) -> Fields:
    """The class of a text, or of a pair of texts, with special tokens around them.

    Rows with the key `masked` also get the fields of masked_lm. If it is True, some of their tokens
    are masked; if False, none are, so that the classifier also sees unmasked text.
    """
    texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
    answer = {"labels": np.int32(row["label"]), "weights": np.float32(1)}
    if "masked" not in row:
        return {**between_separators(texts, tokenizer), **answer}
    if row["masked"]:
        fields = masked(texts, rng, tokenizer, noise_rate, whole_words=False)
    else:
        fields = between_separators(texts, tokenizer)
        fields |= {"targets": fields["inputs"], "weights": np.zeros(len(fields["inputs"]))}
    return {**fields, "token_weights": fields["weights"], **answer}


def text_sequence(given: TaskInputs) -> tuple[tuple[str, ...], SequenceSpec]:
    """The fields of a text or of a pair of texts, and their sequence with special tokens."""
    texts = ("text", "text_pair") if given.text_pairs else ("text",)
    added = given.tokenizer.encoder_template.added(len(texts))
    refuse_short("length", given.data.length, added + len(texts), "cls, sep and text")
    keep_end = given.tokenizer.truncates_left
    return texts, SequenceSpec(texts, given.data.length, added, keep_end=keep_end)


class ClassifyText(Objective):
    name = "classify_text"
    description = "the class of a text, or of a pair of texts"
    families = ("encoder", "decoder")
    kinds = ("labelled",)
    head = "classifier"
    terms = (
        LABELS,
        LossTerm(
            "masked_tokens",
            "targets",
            "token_weights",
            output="masked_tokens",
            key="auxiliary_masked_lm",
            training_only=True,
        ),
    )
    keys = ("auxiliary_masked_lm",)
    framing = ("cls", "sep")

    def more_specials(self, given: TaskInputs) -> tuple[str, ...]:
        return ("mask",) if given.masking.auxiliary else ()

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        texts, sequence = text_sequence(given)
        options = dict(tokenizer=given.tokenizer, noise_rate=given.masking.rate)
        augment = MaskHalfOfRows() if given.masking.auxiliary else None
        features = FeatureSpec(texts, ("label",))
        return TaskSpec(partial(classify_text, **options), features, (sequence,), augment=augment)
