"""Language modelling after a prefix that is read bidirectionally."""

from functools import partial

import numpy as np

from input_pipeline.objectives.objective import Objective, TaskInputs, TaskSpec, refuse_short
from input_pipeline.objectives.shifting import added_by_shift, next_token
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def prefix_lm(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Documents: a prefix of random length is read bidirectionally, the rest is predicted."""
    text = row["text"]
    split = int(rng.integers(1, max(2, len(text))))
    return _prefix_and_rest(text[:split], text[split:], tokenizer)


def prefix_lm_pair(row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer) -> Fields:
    """Pairs: source and sep are the prefix; target and eos are predicted."""
    del rng
    prefix = np.append(row["source"], tokenizer.sep_id)
    return _prefix_and_rest(prefix, np.append(row["target"], tokenizer.eos_id), tokenizer)


def _prefix_and_rest(prefix: np.ndarray, rest: np.ndarray, tokenizer: Tokenizer) -> Fields:
    fields = next_token(np.concatenate([prefix, rest]), len(prefix), tokenizer)
    given = len(tokenizer.causal_prefix) + len(prefix)
    return {**fields, "prefix": np.arange(len(fields["inputs"])) < given}


class PrefixLM(Objective):
    name = "prefix_lm"
    description = "the rest of a text from a prefix that is read both ways; of a pair, the target"
    families = ("decoder",)
    kinds = ("documents", "pairs")
    head = "language_model"
    framing = ("bos",)
    packable = True
    has_prefix = True
    bits_per_byte = True

    def more_specials(self, given: TaskInputs) -> tuple[str, ...]:
        return ("sep", "eos") if given.kind == "pairs" else ()

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        length, added = given.data.length, added_by_shift(given.tokenizer)
        if given.kind == "pairs":
            refuse_short("length", length, 4, "source, sep, target and eos")
            function = prefix_lm_pair
            sequence = SequenceSpec(("source", "target"), length, 2 + added)
            features = FeatureSpec(sequence.fields)
        else:
            refuse_short("length", length, 2, "a prefix and the rest")
            function, sequence = prefix_lm, SequenceSpec(("text",), length, added)
            features = given.text
        fields = partial(function, tokenizer=given.tokenizer)
        return TaskSpec(fields, features, (sequence,), needs_segments=False)
