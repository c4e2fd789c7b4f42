"""From the config to examples: one source, or several to be mixed."""

import dataclasses
import re
from collections.abc import Callable, Mapping

from input_pipeline import huggingface_source, tfds_source
from input_pipeline.config import DataConfig
from input_pipeline.embedded import dates, digits, names, pydoc
from input_pipeline.files import images, labelled_text, text, text_to_text, translation
from input_pipeline.source import Splits
from schema import ConfigError, did_you_mean

EMBEDDED: dict[str, Callable[[], Splits]] = {
    "dates": dates.load,
    "digits": digits.load,
    "names": names.load,
    "pydoc": pydoc.load,
}
# A source that holds several tasks gives the splits of each by name.
FROM_CONFIG: dict[str, Callable[[DataConfig], Splits | Mapping[str, Splits]]] = {
    "text_files": text.load,
    "translation_files": translation.load,
    "labelled_text_files": labelled_text.load,
    "image_files": images.load,
    "text_to_text_files": text_to_text.load,
    "tfds": tfds_source.load,
    "huggingface": huggingface_source.load,
}
BY_NAME = ("tfds", "huggingface")  # sources that look up data.name, where others read data.path


@dataclasses.dataclass(frozen=True)
class Component:
    """One of the sources of a mixture, or the only one, which needs no name."""

    name: str
    weight: float
    splits: Splits


def components(data: DataConfig) -> list[Component]:
    if not data.mixture:
        found = _load(data)
        if isinstance(found, Splits):
            return [Component("", 1, found)]
        return [Component(name, len(splits.train), splits) for name, splits in found.items()]
    if data.source == "text_to_text_files":
        tasks = _load(data)
        for name, _ in data.mixture:
            if name not in tasks:
                raise ConfigError(
                    f"data.mixture names the task {name!r}, which {data.path} does not have."
                    f"{did_you_mean(name, tasks)} It has: {', '.join(tasks)}"
                )
        return [Component(name, weight, tasks[name]) for name, weight in data.mixture]
    return [_part_of_mixture(data, what, weight) for what, weight in data.mixture]


def _part_of_mixture(data: DataConfig, what: str, weight: float) -> Component:
    source, _, place = what.partition(":")
    known = [name for name in (*EMBEDDED, *FROM_CONFIG) if name != "text_to_text_files"]
    if source not in known:
        raise ConfigError(
            f"data.mixture: {what!r} must be a source, or source:path or source:name."
            f"{did_you_mean(source, known)} Sources: {', '.join(known)}"
        )
    where = {"name": place} if source in BY_NAME else {"path": place}
    splits = _load(dataclasses.replace(data, source=source, **where))
    return Component(re.sub(r"\W+", "_", what).strip("_"), weight, splits)


def _load(data: DataConfig) -> Splits | Mapping[str, Splits]:
    if data.source in EMBEDDED:
        return EMBEDDED[data.source]()
    return FROM_CONFIG[data.source](data)
