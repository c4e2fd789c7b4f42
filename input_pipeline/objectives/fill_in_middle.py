"""Fill-in-the-middle: a decoder learns to write what stands between two texts.

In a share of the training rows, one document of the row is cut at two random places into prefix,
middle and suffix, and the middle is moved to the end (Bavarian et al. 2022):

    PRE prefix SUF suffix MID middle eos    prefix-suffix-middle
    PRE SUF suffix MID prefix middle eos    suffix-prefix-middle, share task.fim_spm_rate

PRE, SUF and MID are the first three sentinels. All other rows are those of causal_lm. So are all
rows of evaluation, and its loss compares with that of a left-to-right model.
"""

from functools import partial

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.objectives.objective import (
    MarkTrainingRows,
    Objective,
    TaskInputs,
    TaskSpec,
    refuse_short,
)
from input_pipeline.objectives.shifting import added_by_shift, next_token
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer

SENTINELS = 3


def fill_in_middle(
    row: Row, rng: np.random.Generator, *, tokenizer: Tokenizer, rate: float, spm_rate: float
) -> Fields:
    """Predicts every id from the ids before it, except sentinels, which prompts give."""
    text = row["text"]
    if "is_training" in row and rng.random() < rate:
        text = _middle_last(text, rng, tokenizer, spm_rate)
    fields = next_token(text, 0, tokenizer)
    is_sentinel = np.isin(fields["targets"], tokenizer.sentinel_ids[:SENTINELS])
    return {**fields, "weights": fields["weights"] & ~is_sentinel}


def _middle_last(
    text: np.ndarray, rng: np.random.Generator, tokenizer: Tokenizer, spm_rate: float
) -> np.ndarray:
    """Moves the middle of one document to its end; longer documents are chosen more often."""
    chosen = int(rng.integers(len(text)))
    ends = np.flatnonzero(text == tokenizer.eos_id)
    start = int(max(ends[ends < chosen], default=-1)) + 1
    stop = int(min(ends[ends >= chosen], default=len(text)))
    document = text[start:stop]
    first, last = sorted(rng.integers(len(document) + 1, size=2).tolist())
    prompt = infilling_prompt(
        document[:first], document[last:], tokenizer, suffix_first=rng.random() < spm_rate
    )
    # A document that the row cuts off has no eos yet, and the middle must end.
    parts = text[:start], prompt, document[first:last], [tokenizer.eos_id], text[stop + 1 :]
    return np.concatenate(parts)


def infilling_prompt(
    prefix: np.ndarray, suffix: np.ndarray, tokenizer: Tokenizer, *, suffix_first: bool
) -> np.ndarray:
    """What precedes the middle, in training and in generation."""
    pre, suf, mid = tokenizer.sentinel_ids[:SENTINELS]
    if suffix_first:
        return np.concatenate([[pre, suf], suffix, [mid], prefix])
    return np.concatenate([[pre], prefix, [suf], suffix, [mid]])


class FillInMiddle(Objective):
    name = "fill_in_middle"
    description = "every token from the tokens before it, or a middle from prefix and suffix"
    families = ("decoder",)
    kinds = ("documents",)
    head = "language_model"
    keys = ("fim_rate", "fim_spm_rate")
    framing = ("bos",)
    packable = True
    bits_per_byte = True
    reads_suffix = True

    def more_specials(self, given: TaskInputs) -> tuple[str, ...]:
        return ("sentinels",)

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        masking, tokenizer = given.masking, given.tokenizer
        if tokenizer.sentinel_count < SENTINELS:
            raise ConfigError(
                f"task.objective={self.name!r} needs {SENTINELS} sentinels, but the vocabulary of "
                f"data.tokenizer={given.data.tokenizer!r} has {tokenizer.sentinel_count}; choose "
                "another file, or train one with data.tokenizer='bpe'"
            )
        # Sentinels, and the eos of a document that the row cuts off.
        added = added_by_shift(tokenizer) + (SENTINELS + 1 if masking.fim_rate else 0)
        refuse_short("length", given.data.length, added + 2, "the sentinels, eos and text")
        fields = partial(
            fill_in_middle,
            tokenizer=tokenizer,
            rate=masking.fim_rate,
            spm_rate=masking.fim_spm_rate,
        )
        sequence = SequenceSpec(("text",), given.data.length, added)
        return TaskSpec(
            fields, given.text, (sequence,), needs_segments=False, augment=MarkTrainingRows()
        )
