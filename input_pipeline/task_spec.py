"""Config -> the objective for the source's examples, with what it needs of the rows."""

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.objectives.objective import Masking, Objective, TaskInputs, TaskSpec
from input_pipeline.sources.base import PATCHED, ExampleKind
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer


def objectives_for(kind: ExampleKind) -> list[str]:
    """The objectives that take examples of a kind, those that mostly do so first."""
    applicable = [each for each in OBJECTIVES.values() if kind in each.kinds]
    return [each.name for each in sorted(applicable, key=lambda each: each.kinds.index(kind))]


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
    chosen, given = OBJECTIVES[objective], TaskInputs(kind, data, tokenizer, masking, text_pairs)
    _refuse_what_cannot_work(chosen, given)
    _refuse_missing_specials(chosen, given)
    spec = chosen.task_spec(given)
    has_answer = kind not in ("documents", *PATCHED) and spec.features != FeatureSpec(("text",))
    if data.over_long == "split" and has_answer:
        raise ConfigError(
            f"data.over_long='split' is for text alone: a part of a {kind} example has no answer "
            "of its own; choose truncate or drop"
        )
    return spec


def _refuse_what_cannot_work(objective: Objective, given: TaskInputs) -> None:
    kind, data, next_sentence = given.kind, given.data, given.masking.next_sentence
    if kind not in objective.kinds:
        raise ConfigError(
            f"task.objective={objective.name!r} does not fit data.source={data.source!r}, "
            f"whose examples are {kind}; choose one of: {', '.join(objectives_for(kind))}"
        )
    if next_sentence and kind != "documents":
        raise ConfigError(
            "task.next_sentence=True needs running text such as data.source='pydoc', "
            f"not {data.source!r}; set it to False"
        )
    if data.packing and (next_sentence or not objective.packable):
        what = "task.next_sentence" if next_sentence else f"task.objective={objective.name!r}"
        raise ConfigError(
            f"data.packing=True does not go with {what}: rows must hold one example each, or are "
            "full already; set it to False"
        )
    if data.sorts_by_length and kind in ("documents", *PATCHED):
        key, off = ("buckets", ()) if data.buckets else ("bucket_count", 0)
        raise ConfigError(
            f"data.{key} sorts examples by length, but {kind} all make rows of the same; "
            f"set it to {off}"
        )


def _refuse_missing_specials(objective: Objective, given: TaskInputs) -> None:
    """Published vocabularies may lack special ids that the objective needs."""
    tokenizer, needed = given.tokenizer, objective.specials
    if tokenizer is None or tokenizer.template is None:
        needed += objective.framing
    needed += ("eos",) if given.kind == "documents" else ()
    needed += objective.more_specials(given)
    missing = [role for role in dict.fromkeys(needed) if not _has(tokenizer, role)]
    if missing:
        raise ConfigError(
            f"task.objective={objective.name!r} needs {', '.join(missing)}, which the vocabulary "
            f"of data.tokenizer={given.data.tokenizer!r} lacks; choose another file, or train one "
            "with data.tokenizer='bpe'"
        )


def _has(tokenizer: Tokenizer, role: str) -> bool:
    if role == "sentinels":
        return tokenizer.sentinel_count > 0
    return getattr(tokenizer, f"{role}_id") is not None
