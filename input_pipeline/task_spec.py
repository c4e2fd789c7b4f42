"""Config -> the objective for the source's examples, with what it needs of the rows."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from experiment.schema import ConfigError
from input_pipeline import objectives
from input_pipeline.augmentation import Augmentation, choose_augmentation
from input_pipeline.config import DataConfig
from input_pipeline.objectives import Fields
from input_pipeline.row_layout import RowLayout
from input_pipeline.rows import Row, SequenceSpec
from input_pipeline.sources.base import ExampleKind
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer

OBJECTIVES_FOR = {
    "pairs": ("seq2seq", "prefix_lm"),
    "documents": ("causal_lm", "prefix_lm", "masked_lm", "span_corruption"),
    "labelled": ("classify_text", "masked_lm"),
    "images": ("classify_images",),
}
# The special ids that an objective uses; documents also need eos between them.
SPECIALS_OF = {
    "causal_lm": ("bos",),
    "prefix_lm": ("bos",),
    "seq2seq": ("bos", "eos"),
    "masked_lm": ("mask", "cls", "sep"),
    "span_corruption": ("bos", "eos"),
    "classify_text": ("cls", "sep"),
    "classify_images": (),
}
# Objectives that predict tokens can pack several examples into a row.
PACKABLE = ("causal_lm", "prefix_lm", "masked_lm", "seq2seq")


@dataclasses.dataclass(frozen=True)
class Masking:
    """How objectives mask tokens; a part of the task's config."""

    rate: float
    mean_span: float
    whole_words: bool
    next_sentence: bool
    beside_classes: bool = False  # classify_text: mask tokens for an auxiliary masked LM


Augment = Augmentation | objectives.MaskHalfOfRows


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """An objective, and how its rows are made."""

    fields: Callable[[Row, np.random.Generator], Fields]
    features: FeatureSpec  # the fields of an example
    sequences: tuple[SequenceSpec, ...]
    needs_segments: bool = True
    needs_other_row: bool = False  # rows carry another random row, as `other`
    augment: Augment | None = None  # applied to training rows only

    def layout(self, length: int, encoder_length: int, *, packed: bool) -> RowLayout:
        return RowLayout(length, encoder_length, self.needs_segments, packed)


def choose_task_spec(
    objective: str,
    kind: ExampleKind,
    data: DataConfig,
    tokenizer: Tokenizer | None,
    masking: Masking,
    *,
    text_pairs: bool = False,
) -> TaskSpec:
    """The task of an objective; raises ConfigError if it does not suit the data or the tokenizer.

    `kind` is that of the examples. `text_pairs`: classified examples have two texts.
    """
    _refuse_what_cannot_work(objective, kind, data, masking)
    _refuse_missing_specials(objective, kind, data, tokenizer, masking)
    length, encoder_length = data.length, data.encoder_length
    text = FeatureSpec(("text",), closed=kind == "documents")
    with_ids = {"tokenizer": tokenizer}
    with_rate = {**with_ids, "noise_rate": masking.rate}
    with_words = {**with_rate, "whole_words": masking.whole_words}
    match objective, kind:
        case "causal_lm", _:
            fields = partial(objectives.causal_lm, **with_ids)
            sequence = SequenceSpec(("text",), length, _added_by_shift(tokenizer))
            return TaskSpec(fields, text, (sequence,), needs_segments=False)
        case "prefix_lm", "documents":
            _refuse_short("length", length, 2, "a prefix and the rest")
            fields = partial(objectives.prefix_lm, **with_ids)
            sequence = SequenceSpec(("text",), length, _added_by_shift(tokenizer))
            return TaskSpec(fields, text, (sequence,), needs_segments=False)
        case "prefix_lm", _:
            _refuse_short("length", length, 4, "source, sep, target and eos")
            fields = partial(objectives.prefix_lm_pair, **with_ids)
            sequence = SequenceSpec(("source", "target"), length, 2 + _added_by_shift(tokenizer))
            return TaskSpec(fields, FeatureSpec(sequence.fields), (sequence,), needs_segments=False)
        case "seq2seq", _:
            of_source, of_target = (
                sum(map(len, affixes))
                for affixes in (tokenizer.source_affixes, tokenizer.target_affixes)
            )
            _refuse_short("length", length, of_target + 1, "target and eos")
            _refuse_short("encoder_length", encoder_length, of_source + 1, "source and eos")
            sequences = (
                SequenceSpec(("source",), encoder_length, of_source, "data.encoder_length"),
                SequenceSpec(("target",), length, of_target),
            )
            return TaskSpec(
                partial(objectives.seq2seq, **with_ids),
                FeatureSpec(("source", "target")),
                sequences,
            )
        case "masked_lm", _ if masking.next_sentence:
            added = tokenizer.encoder_template.added(2)
            _refuse_short("length", length, added + 2, "cls, sep and text")
            room = length - added
            fields = partial(objectives.masked_lm_with_next_sentence, **with_words, room=room)
            features = FeatureSpec(("text",), ("first",), sentences=True)
            return TaskSpec(
                fields, features, (SequenceSpec(("text",), length, added),), needs_other_row=True
            )
        case "masked_lm", _:
            added = tokenizer.encoder_template.added(1)
            _refuse_short("length", length, added + 1, "cls, sep and text")
            fields = partial(objectives.masked_lm, **with_words)
            return TaskSpec(fields, text, (SequenceSpec(("text",), length, added),))
        case "span_corruption", _:
            room = _span_corruption_room(data, tokenizer, masking)
            fields = partial(objectives.span_corruption, **with_rate, mean_span=masking.mean_span)
            return TaskSpec(fields, text, (SequenceSpec(("text",), room, 0),))
        case "classify_text", _:
            texts = ("text", "text_pair") if text_pairs else ("text",)
            added = tokenizer.encoder_template.added(len(texts))
            _refuse_short("length", length, added + len(texts), "cls, sep and text")
            sequence = SequenceSpec(texts, length, added)
            fields = partial(objectives.classify_text, **with_rate)
            augment = objectives.MaskHalfOfRows() if masking.beside_classes else None
            return TaskSpec(fields, FeatureSpec(texts, ("label",)), (sequence,), augment=augment)
        case "classify_images", _:
            fields = objectives.classify_images
            fields = partial(fields, mean=data.image_mean, std=data.image_std)
            return TaskSpec(fields, FeatureSpec(()), (), augment=choose_augmentation(data))
    raise AssertionError(f"OBJECTIVES_FOR lists {objective!r}, which has no case above")


def _added_by_shift(tokenizer: Tokenizer) -> int:
    """Columns that next-token prediction needs beyond the ids of a text; may be -1.

    The last id is only a target, never an input. So a text of n ids needs n columns if bos
    precedes it, and n - 1 if nothing does.
    """
    return len(tokenizer.causal_prefix) - 1


def _refuse_what_cannot_work(
    objective: str, kind: ExampleKind, data: DataConfig, masking: Masking
) -> None:
    allowed = OBJECTIVES_FOR[kind]
    if objective not in allowed:
        raise ConfigError(
            f"task.objective={objective!r} does not fit data.source={data.source!r}, "
            f"whose examples are {kind}; choose one of: {', '.join(allowed)}"
        )
    if masking.next_sentence and kind != "documents":
        raise ConfigError(
            "task.next_sentence=True needs running text such as data.source='pydoc', "
            f"not {data.source!r}; set it to False"
        )
    if data.packing and (objective not in PACKABLE or masking.next_sentence):
        what = "task.next_sentence" if masking.next_sentence else f"task.objective={objective!r}"
        raise ConfigError(
            f"data.packing=True does not go with {what}: rows must hold one example each, or are "
            "full already; set it to False"
        )
    if data.sorts_by_length and kind in ("documents", "images"):
        key, off = ("buckets", ()) if data.buckets else ("bucket_count", 0)
        raise ConfigError(
            f"data.{key} sorts examples by length, but {kind} all make rows of the same; "
            f"set it to {off}"
        )
    if (
        data.over_long == "split"
        and kind not in ("documents", "images")
        and (objective != "masked_lm")
    ):
        raise ConfigError(
            f"data.over_long='split' is for text alone: a part of a {kind} example has no answer "
            "of its own; choose truncate or drop"
        )


def _refuse_missing_specials(
    objective: str, kind: str, data: DataConfig, tokenizer: Tokenizer | None, masking: Masking
) -> None:
    """Published vocabularies may lack special ids that the objective needs."""
    needed = SPECIALS_OF[objective]
    if tokenizer is not None and tokenizer.template is not None:
        # A published tokenizer adds its own special ids around a text.
        framed = ("cls", "sep") if objective != "seq2seq" else ()
        framed += ("bos",) if objective in ("causal_lm", "prefix_lm") else ()
        needed = tuple(role for role in needed if role not in framed)
    needed += ("eos",) if kind == "documents" else ()
    needed += ("mask",) if masking.beside_classes else ()
    needed += ("sep", "eos") if (objective, kind) == ("prefix_lm", "pairs") else ()
    missing = [role for role in needed if getattr(tokenizer, f"{role}_id") is None]
    if objective == "span_corruption" and not tokenizer.sentinel_count:
        missing.append("sentinels")
    if missing:
        raise ConfigError(
            f"task.objective={objective!r} needs {', '.join(missing)}, which the vocabulary of "
            f"data.tokenizer={data.tokenizer!r} lacks; choose another file, or train one with "
            "data.tokenizer='bpe'"
        )


def _refuse_short(key: str, value: int, needed: int, what: str) -> None:
    if value < needed:
        raise ConfigError(f"data.{key}={value} has no room for {what}; set it to at least {needed}")


def _span_corruption_room(data: DataConfig, tokenizer: Tokenizer, masking: Masking) -> int:
    """The longest text whose masked form fits the encoder's length.

    Both sequences grow with the text, so every shorter text fits, too.
    """
    of_source, of_target = (
        sum(map(len, affixes)) for affixes in (tokenizer.source_affixes, tokenizer.target_affixes)
    )
    _refuse_short("encoder_length", data.encoder_length, of_source + 3, "text, a sentinel and eos")
    text = 2
    while of_source + _encoder_needs(text + 1, masking) <= data.encoder_length:
        text += 1
    masked, spans = objectives.span_counts(text, masking.rate, masking.mean_span)
    needed = of_target + masked + spans
    _refuse_short("length", data.length, needed, "the spans masked for the encoder")
    if spans > tokenizer.sentinel_count:
        raise ConfigError(
            f"data.encoder_length={data.encoder_length} makes {spans} spans for "
            f"{tokenizer.sentinel_count} sentinels; raise task.mean_span or lower the length"
        )
    return text


def _encoder_needs(text: int, masking: Masking) -> int:
    masked, spans = objectives.span_counts(text, masking.rate, masking.mean_span)
    return text - masked + spans
