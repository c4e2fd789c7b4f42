"""The interface of objectives. Each objective is one object in one file of this package.

An objective declares what it needs and what the model predicts, and says how rows become fields.
`OBJECTIVES` in `__init__.py` lists it. Nothing else in the project names an objective, apart from
configs and the tables of published models.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.row_layout import RowLayout
from input_pipeline.rows import Fields, Row, SequenceSpec
from input_pipeline.sources.base import SIGNALS, ExampleKind
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Masking:
    """How objectives mask tokens; a part of the task's config."""

    rate: float
    mean_span: float
    whole_words: bool
    next_sentence: bool
    auxiliary: bool = False  # classify_text: mask tokens for an auxiliary masked LM
    fim_rate: float = 0.5  # fill_in_middle: share of rows, and of those the suffix first
    fim_spm_rate: float = 0.5
    window_overlap: int = 128  # answer_span: ids that neighbouring windows of a context share
    unanswerable: bool = False  # answer_span: some questions have no answer


class Augment(Protocol):
    """A random change of training rows."""

    needs_other_row: bool  # rows carry another random row, as `other`

    def __call__(self, row: Row, rng: np.random.Generator) -> Row: ...


@dataclasses.dataclass(frozen=True)
class MarkTrainingRows:
    """Marks the rows of training."""

    needs_other_row: bool = False

    def __call__(self, row: Row, rng: np.random.Generator) -> Row:
        return {**row, "is_training": True}


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """How an objective's rows are made."""

    fields: Callable[[Row, np.random.Generator], Fields]
    features: FeatureSpec  # the fields of an example
    sequences: tuple[SequenceSpec, ...]
    needs_segments: bool = True
    needs_other_row: bool = False  # rows carry another random row, as `other`
    augment: Augment | None = None  # applied to training rows only
    predictions: int = 0  # predicted positions of a row, in the field `predicted`; 0: all

    def layout(self, length: int, encoder_length: int, *, packed: bool) -> RowLayout:
        return RowLayout(length, encoder_length, self.needs_segments, packed, self.predictions)


@dataclasses.dataclass(frozen=True)
class TaskInputs:
    """What an objective builds its `TaskSpec` from."""

    kind: ExampleKind  # of the examples
    data: DataConfig
    tokenizer: Tokenizer | None  # None for images and signals
    masking: Masking
    text_pairs: bool = False  # classified examples have two texts

    @property
    def text(self) -> FeatureSpec:
        """The features of examples of which only the text is read."""
        return FeatureSpec(("text",), closed=self.kind == "documents")


class LossTerm(NamedTuple):
    """A term of the loss, a cross-entropy: which arrays of the batch are its targets and weights.

    If a row has one target but a weight for each column, the row counts if any of its weights is
    above 0.
    """

    name: str
    targets: str
    weights: str = "weights"
    output: str = "logits"  # of the model
    # A key of the `task` section: its value multiplies the term's mean; 0 switches the term off.
    key: str = ""
    training_only: bool = False  # evaluation batches may lack its arrays
    is_squared_error: bool = False  # of the model's one output, in place of the cross-entropy


TOKENS = LossTerm("tokens", "targets")
LABELS = LossTerm("labels", "labels")


class Objective:
    """An objective. Subclasses declare what it needs, and build its rows."""

    name: str
    description: str
    families: tuple[str, ...]  # values of model.family that can learn it
    kinds: tuple[ExampleKind, ...] = ()  # of examples, the usual one first; (): cannot be trained
    head: Literal[
        "language_model", "masked_language_model", "classifier", "token_classifier", "regressor",
        "span", "forecaster", "embedder",
    ]  # fmt: skip
    terms: tuple[LossTerm, ...] = (TOKENS,)  # the main one first
    keys: tuple[str, ...] = ()  # keys of the `task` section that other objectives do not have
    specials: tuple[str, ...] = ()  # special ids that it writes
    framing: tuple[str, ...] = ()  # special ids around a text; a published tokenizer has its own
    packable = False  # whether several examples can share a row
    has_prefix = False  # rows have the field `prefix`: positions that are read both ways
    reads_suffix = False  # prompts may have a suffix: the output goes before it
    # Whether the loss compares with a frozen copy of the parameters that a run starts from.
    needs_reference = False
    ranks_items = False  # the data are items: metrics and generate.py rank those not in a row
    bits_per_byte = False  # whether the targets are the text, so that its bytes can be counted

    @property
    def has_source(self) -> bool:
        """Whether rows have a source side, `encoder_inputs`."""
        return "encoder_decoder" in self.families

    @property
    def is_causal(self) -> bool:
        """Whether the model predicts every token from those before it alone."""
        return self.head == "language_model" and not (self.has_source or self.has_prefix)

    @property
    def takes_images(self) -> bool:
        return "images" in self.kinds

    @property
    def takes_signals(self) -> bool:
        return not set(SIGNALS).isdisjoint(self.kinds)

    @property
    def takes_patches(self) -> bool:
        """Whether the model cuts the examples into patches; they have no tokens."""
        return self.takes_images or self.takes_signals

    def more_specials(self, given: TaskInputs) -> tuple[str, ...]:
        """Special ids that are needed for some examples or settings only."""
        return ()

    def task_spec(self, given: TaskInputs) -> TaskSpec:
        """How rows are made; raises ConfigError if there is no room for them."""
        raise NotImplementedError


def refuse_short(key: str, value: int, needed: int, what: str) -> None:
    """Raises ConfigError if data.KEY leaves no room for `what`, which needs `needed` tokens."""
    if value < needed:
        raise ConfigError(f"data.{key}={value} has no room for {what}; set it to at least {needed}")
