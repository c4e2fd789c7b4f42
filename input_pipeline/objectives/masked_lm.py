"""BERT's masked language modelling, optionally with next-sentence prediction."""

from functools import partial

import numpy as np

from input_pipeline.objectives.objective import (
    TOKENS,
    LossTerm,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.objectives.token_masking import masked
from input_pipeline.rows import Fields, Row, SequenceSpec, fit
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def masked_lm(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
) -> Fields:
    """[cls] text [sep], with a share of the text masked."""
    return masked([row["text"]], rng, tokenizer, noise_rate, whole_words)


def masked_lm_with_next_sentence(
    row: Row,
    rng: np.random.Generator,
    *,
    tokenizer: Tokenizer,
    noise_rate: float,
    whole_words: bool,
    room: int,
) -> Fields:
    """[cls] sentences [sep] sentences [sep]; in half of the rows the second part follows the first.

    In the others it comes from another row. `room`: ids of both parts together.
    """
    sentences, others = row["sentences"], row["other"]["sentences"]
    follows = rng.random() < 0.5
    cut = int(rng.integers(1, len(sentences)))
    second = sentences[cut:] if follows else others[int(rng.integers(len(others))) :]
    before = np.concatenate(sentences[:cut])
    first, second = fit([before, np.concatenate(second)], room)
    # Cut at the front, so that the second part still follows.
    first = before[len(before) - len(first) :]
    fields = masked([first, second], rng, tokenizer, noise_rate, whole_words)
    return {**fields, "next_sentence": np.int32(follows)}


class MaskedLM(Objective):
    name = "masked_lm"
    description = "masked tokens from the tokens on both sides"
    families = ("encoder",)
    kinds = ("documents", "labelled")
    head = "masked_language_model"
    terms = (
        TOKENS,
        LossTerm("next_sentence", "next_sentence", output="next_sentence", key="next_sentence"),
    )
    keys = ("whole_words", "next_sentence")
    specials = ("mask",)
    framing = ("cls", "sep")
    packable = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        masking, length = given.masking, given.data.length
        texts = 2 if masking.next_sentence else 1
        added = given.tokenizer.encoder_template.added(texts)
        refuse_short("length", length, added + texts, "cls, sep and text")
        sequence = SequenceSpec(("text",), length, added)
        options = dict(
            tokenizer=given.tokenizer, noise_rate=masking.rate, whole_words=masking.whole_words
        )
        if not masking.next_sentence:
            return TaskSpec(partial(masked_lm, **options), given.text, (sequence,))
        fields = partial(masked_lm_with_next_sentence, **options, room=sequence.room)
        features = FeatureSpec(("text",), ("first",), sentences=True)
        return TaskSpec(fields, features, (sequence,), needs_other_row=True)
