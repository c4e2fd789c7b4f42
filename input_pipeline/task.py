"""From the config to one objective that fits the source, or to the reason why none does."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from input_pipeline import objectives
from input_pipeline.config import DataConfig
from input_pipeline.objectives import Fields
from input_pipeline.rows import Row
from input_pipeline.source import Splits
from input_pipeline.tokenizer import Tokenizer
from schema import ConfigError

OBJECTIVES_FOR = {
    "pairs": ("seq2seq", "prefix_lm"),
    "documents": ("causal_lm", "prefix_lm", "masked_lm", "span_corruption"),
    "labelled": ("classify_text", "masked_lm"),
    "images": ("classify_images",),
}
# The special ids that an objective writes; running text also needs eos, between documents.
SPECIALS_OF = {
    "causal_lm": ("bos",),
    "prefix_lm": ("bos",),
    "seq2seq": ("bos", "eos"),
    "masked_lm": ("mask", "cls", "sep"),
    "span_corruption": ("bos", "eos"),
    "classify_text": ("cls", "sep"),
    "classify_images": (),
}


@dataclasses.dataclass(frozen=True)
class Task:
    fields: Callable[[Row, np.random.Generator], Fields]
    capacity: Mapping[str, int]  # the most ids the objective has room for, by field of the row
    needs_other_row: bool = False  # the row must come with another row's text, as `other`


def choose(
    objective: str,
    splits: Splits,
    data: DataConfig,
    tokenizer: Tokenizer | None,
    *,
    noise_rate: float,
    mean_span: float,
    next_sentence: bool,
) -> Task:
    _refuse_what_cannot_work(objective, splits, data, noise_rate, next_sentence)
    _refuse_missing_specials(objective, splits.kind, data, tokenizer)
    one_side = {"tokenizer": tokenizer, "length": data.length}
    two_sides = {**one_side, "encoder_length": data.encoder_length}
    match objective, splits.kind:
        case "causal_lm", _:
            return Task(partial(objectives.causal_lm, **one_side), {"text": data.length})
        case "prefix_lm", "documents":
            _refuse_short("length", data.length, 2, "a prefix and the rest")
            return Task(partial(objectives.prefix_lm, **one_side), {"text": data.length})
        case "prefix_lm", _:
            target = _longest_target(splits, tokenizer)
            _refuse_short("length", data.length, target + 3, "source, sep, target and eos")
            capacity = {"source": data.length - target - 2, "target": target}
            return Task(partial(objectives.prefix_lm_pair, **one_side), capacity)
        case "seq2seq", _:
            target = _longest_target(splits, tokenizer)
            _refuse_short("length", data.length, target + 1, "target and eos")
            _refuse_short("encoder_length", data.encoder_length, 2, "source and eos")
            capacity = {"source": data.encoder_length - 1, "target": data.length - 1}
            return Task(partial(objectives.seq2seq, **two_sides), capacity)
        case "masked_lm", _ if next_sentence:
            fields = objectives.masked_lm_with_next_sentence
            fields = partial(fields, **one_side, noise_rate=noise_rate)
            return Task(fields, _text_beside(3, data), needs_other_row=True)
        case "masked_lm", _:
            fields = partial(objectives.masked_lm, **one_side, noise_rate=noise_rate)
            return Task(fields, _text_beside(2, data))
        case "span_corruption", _:
            capacity = {"text": _span_corruption_room(data, tokenizer, noise_rate, mean_span)}
            spans = {"noise_rate": noise_rate, "mean_span": mean_span}
            return Task(partial(objectives.span_corruption, **two_sides, **spans), capacity)
        case "classify_text", _:
            return Task(partial(objectives.classify_text, **one_side), _text_beside(2, data))
        case "classify_images", _:
            return Task(objectives.classify_images, {})
    raise AssertionError(f"OBJECTIVES_FOR lists {objective!r}, which has no case above")


def _refuse_what_cannot_work(
    objective: str, splits: Splits, data: DataConfig, noise_rate: float, next_sentence: bool
) -> None:
    allowed = OBJECTIVES_FOR[splits.kind]
    if objective not in allowed:
        raise ConfigError(
            f"task.objective={objective!r} does not fit data.source={data.source!r}, "
            f"whose examples are {splits.kind}; choose one of: {', '.join(allowed)}"
        )
    if next_sentence and (objective != "masked_lm" or splits.kind != "documents"):
        raise ConfigError(
            "task.next_sentence=True needs task.objective='masked_lm' and running text such as "
            f"data.source='pydoc', not {objective!r} on {data.source!r}; set it to False"
        )
    if objective in ("masked_lm", "span_corruption") and not 0 < noise_rate < 1:
        raise ConfigError(
            f"task.noise_rate={noise_rate} leaves nothing to hide or nothing to see; "
            "choose a share between 0 and 1, such as 0.15"
        )
    empty = [name for name, split in {"train": splits.train, **splits.evals}.items() if not split]
    if empty:
        raise ConfigError(
            f"data.source={data.source!r} has no examples in {', '.join(empty)}; "
            "choose another data.source"
        )


def _refuse_missing_specials(
    objective: str, kind: str, data: DataConfig, tokenizer: Tokenizer | None
) -> None:
    """Published vocabularies have what their own models needed."""
    needed = SPECIALS_OF[objective]
    needed += ("eos",) if kind == "documents" else ()
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


def _text_beside(specials: int, data: DataConfig) -> dict[str, int]:
    # At least two ids of text, so that with next_sentence both halves have some.
    _refuse_short("length", data.length, specials + 2, "cls, sep and text")
    return {"text": data.length - specials}


def _longest_target(splits: Splits, tokenizer: Tokenizer) -> int:
    """Among the held-out examples: training examples may be too many to look at."""
    held_out = (example for examples in splits.evals.values() for example in examples)
    return max(len(tokenizer.encode(example["target"])) for example in held_out)


def _span_corruption_room(
    data: DataConfig, tokenizer: Tokenizer, noise_rate: float, mean_span: float
) -> int:
    """The longest text that, with its spans hidden, fills the encoder's length exactly.

    Both sides only ever grow with the text, so what holds for this length holds for any shorter.
    """
    _refuse_short("encoder_length", data.encoder_length, 4, "text, a sentinel and eos")
    if mean_span < 1:
        raise ConfigError(f"task.mean_span={mean_span} is shorter than a token; set it to 3")
    text = 2
    while _encoder_needs(text + 1, noise_rate, mean_span) <= data.encoder_length:
        text += 1
    noise, spans = objectives.span_counts(text, noise_rate, mean_span)
    _refuse_short("length", data.length, noise + spans + 1, "the spans hidden from the encoder")
    if spans > tokenizer.sentinel_count:
        raise ConfigError(
            f"data.encoder_length={data.encoder_length} makes {spans} spans for "
            f"{tokenizer.sentinel_count} sentinels; raise task.mean_span or lower the length"
        )
    return text


def _encoder_needs(text: int, noise_rate: float, mean_span: float) -> int:
    noise, spans = objectives.span_counts(text, noise_rate, mean_span)
    return text - noise + spans + 1
