"""The table of sources, and from a config to examples: one source, or several that are mixed.

A new source is one file and one line in the table.
"""

import collections
import dataclasses
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.config import DataConfig
from input_pipeline.object_copy import with_local_path
from input_pipeline.sources import huggingface_source, tfds_source
from input_pipeline.sources.base import SIGNALS, Source, Splits
from input_pipeline.sources.embedded import dates, digits, listops, names, pydoc, recall
from input_pipeline.sources.files import (
    chat,
    images,
    items,
    labelled_text,
    preferences,
    questions,
    scored_text,
    series,
    sounds,
    tagged_text,
    text,
    text_to_text,
    translation,
)
from input_pipeline.sources.train_sample import with_train_sample
from input_pipeline.token_cache import cache_directory
from storage.object_store import is_remote

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        dates.SOURCE,
        pydoc.SOURCE,
        names.SOURCE,
        digits.SOURCE,
        listops.SOURCE,
        recall.SOURCE,
        text.SOURCE,
        translation.SOURCE,
        labelled_text.SOURCE,
        scored_text.SOURCE,
        tagged_text.SOURCE,
        questions.SOURCE,
        images.SOURCE,
        text_to_text.SOURCE,
        chat.SOURCE,
        preferences.SOURCE,
        items.SOURCE,
        sounds.SOURCE,
        series.SOURCE,
        tfds_source.SOURCE,
        huggingface_source.SOURCE,
    )
}


def source_for_imports(kind: str) -> str:
    """The `data.source` in the config of an imported model that reads examples of this kind.

    Returns the first such source in the table; raises ConfigError if there is none.
    """
    for name, source in SOURCES.items():
        if source.kind == kind and source.for_imports:
            return name
    raise ConfigError(
        f"no source in the table has for_imports=True and kind={kind!r}, which an imported model "
        "of this objective reads; set it for one in input_pipeline/sources/"
    )


# Properties that the sources of a mixture must share.
LIKENESSES: dict[str, Callable[[Splits], Any]] = {
    "kinds": lambda splits: splits.kind,
    "labels": lambda splits: splits.labels,
    "texts in an example": lambda splits: 1 + splits.text_pairs,
    "images": lambda s: s.train[0]["image"].shape if s.kind == "images" else "none",
    "signals": lambda s: s.train[0]["signal"].shape if s.kind in SIGNALS else "none",
}


@dataclasses.dataclass(frozen=True)
class Component:
    """One source of a mixture, or the only source, which has no name."""

    name: str
    weight: float  # its share of the rows; 0: proportional to its size
    splits: Splits


def components(data: DataConfig) -> list[Component]:
    """Opens the sources of a config; raises ConfigError if they are empty or cannot be mixed."""
    found = _components(data)
    _refuse_empty(data, found)
    _refuse_unlike(found)
    return [_with_train_sample(data, found)] if data.train_examples else found


def _with_train_sample(data: DataConfig, found: Sequence[Component]) -> Component:
    count = data.train_examples
    if len(found) > 1:
        raise ConfigError(
            f"data.train_examples={count} takes a sample of one source or task, but the data has "
            f"{len(found)}: {', '.join(each.name for each in found)}; set it to 0, or choose one"
        )
    (component,) = found
    available = len(component.splits.train)
    if count > available:
        raise ConfigError(
            f"data.train_examples={count} exceeds the {available} examples of the split "
            f"{data.train_split!r}; set it to at most {available}, or to 0 for all"
        )
    return dataclasses.replace(component, splits=with_train_sample(component.splits, count))


def _components(data: DataConfig) -> list[Component]:
    if data.mixture and not data.mixes_tasks:
        return [Component(name_of(w), weight, _part(data, w)) for w, weight in data.mixture]
    loaded = SOURCES[data.source].load(data)
    if isinstance(loaded, Splits):
        return [Component("", 0, loaded)]
    for task, _ in data.mixture:
        if task not in loaded:
            raise ConfigError(
                f"data.mixture names the task {task!r}, which {data.path} does not have."
                f"{did_you_mean(task, loaded)} It has: {', '.join(loaded)}"
            )
    chosen = data.mixture or [(task, 0) for task in loaded]
    return [Component(name_of(task), weight, loaded[task]) for task, weight in chosen]


def name_of(what: str) -> str:
    """A name for metrics and files: letters, digits and underscores."""
    return re.sub(r"\W+", "_", what).strip("_")


def _part(data: DataConfig, what: str) -> Splits:
    source, _, place = what.partition(":")
    known = [name for name, each in SOURCES.items() if not each.has_tasks]
    if source not in known:
        hint = did_you_mean(source, known) or f" Sources: {', '.join(known)}"
        raise ConfigError(
            f"data.mixture: {what!r} must be a source, or source:path or source:name.{hint}"
        )
    where = {SOURCES[source].place or "path": place} if place else {}
    options = data.options if SOURCES[source].options else {}
    part = dataclasses.replace(data, source=source, mixture=(), options=options, **where)
    if problems := list(part.problems()):
        raise ConfigError(f"data.mixture: {what!r}: {problems[0]}")
    try:
        return SOURCES[source].load(with_local_path(part, cache_directory(data)))
    except ConfigError as error:
        if not is_remote(place):
            raise
        raise ConfigError(f"data.mixture: {error}") from error


def _refuse_empty(data: DataConfig, found: Sequence[Component]) -> None:
    for each in found:
        for name, examples in ((data.train_split, each.splits.train), *each.splits.evals.items()):
            if not len(examples):
                of = f" of {each.name}" if each.name else ""
                raise ConfigError(
                    f"the split {name!r}{of} has 0 examples; choose another split or data.path"
                )
    if not any(each.splits.evals for each in found):
        raise ConfigError(
            f"data.eval_split={data.eval_split!r} has 0 examples of what is trained on"
        )


def _refuse_unlike(found: Sequence[Component]) -> None:
    """Raises ConfigError if sources share a name or make different rows."""
    name, times = collections.Counter(each.name for each in found).most_common(1)[0]
    if times > 1:
        raise ConfigError(
            f"{times} parts of the data would be called {name!r}; rename or join them"
        )
    first, *others = found
    for each in others:
        for what, of in LIKENESSES.items():
            if of(each.splits) != of(first.splits):
                raise ConfigError(
                    f"data.mixture: {first.name} and {each.name} cannot be mixed, their {what} "
                    f"differ: {reprlib.repr(of(first.splits))} and {reprlib.repr(of(each.splits))}"
                )
