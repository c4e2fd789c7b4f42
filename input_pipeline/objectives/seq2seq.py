"""From a source text to a target text, as in translation."""

from functools import partial

import numpy as np

from input_pipeline.objectives.affixes import between
from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec, refuse_short
from input_pipeline.objectives.shifting import shifted
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def seq2seq(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """The encoder reads the source; the decoder predicts the target."""
    del rng
    return encoder_and_decoder(row["source"], row["target"], tokenizer)


def encoder_and_decoder(source: np.ndarray, target: np.ndarray, tokenizer: Tokenizer) -> Fields:
    """The fields of a pair: the source with its special ids, and the shifted target.

    source, target: ids, (length) each. Returns `encoder_inputs` and those of `shifted`.
    """
    decoder_text = between(tokenizer.target_affixes, target)
    return {
        "encoder_inputs": between(tokenizer.source_affixes, source),
        **shifted([tokenizer.bos_id], decoder_text, 0),
    }


def count_affixes(tokenizer: Tokenizer) -> tuple[int, int]:
    """The number of special ids around a source, and around a target."""
    both = tokenizer.source_affixes, tokenizer.target_affixes
    of_source, of_target = (sum(map(len, affixes)) for affixes in both)
    return of_source, of_target


class Seq2Seq(Objective):
    name = "seq2seq"
    description = "the target of a pair from its source"
    families = ("encoder_decoder",)
    kinds = ("pairs",)
    head = "language_model"
    specials = ("bos", "eos")
    packable = True

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        length, encoder_length = given.data.length, given.data.encoder_length
        of_source, of_target = count_affixes(given.tokenizer)
        refuse_short("length", length, of_target + 1, "target and eos")
        refuse_short("encoder_length", encoder_length, of_source + 1, "source and eos")
        sequences = (
            SequenceSpec(
                ("source",), encoder_length, of_source, "data.encoder_length",
                keep_end=given.tokenizer.truncates_left,
            ),
            SequenceSpec(("target",), length, of_target),
        )  # fmt: skip
        fields = partial(seq2seq, tokenizer=given.tokenizer)
        return TaskSpec(fields, FeatureSpec(("source", "target")), sequences)
