"""Config keys of earlier versions. A config file may set them; it is read with a warning."""

import warnings
from typing import Any

import ml_collections

# Former key -> current key; both are in the same section.
FORMER_KEYS = {
    "eval.measures": "eval.metrics",
    "data.listops_depth": "data.options.depth",
    "data.listops_arguments": "data.options.arguments",
    "data.listops_min_length": "data.options.min_length",
    "data.listops_max_length": "data.options.max_length",
}


class FormerKeyWarning(FutureWarning):
    """A config file uses a former key."""


class Section(ml_collections.ConfigDict):
    """A section that takes and gives values under former keys. It holds current keys only."""

    section = ""

    def __setitem__(self, key: str, value: Any) -> None:
        *parents, name = self._current_path(key)
        if not parents:
            return super().__setitem__(name, value)
        (parent,) = parents
        with self[parent].unlocked():  # the options of a source are set one by one
            self[parent][name] = value

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(".".join(self._current_path(key)))

    def _current_path(self, key: str) -> list[str]:
        former = f"{self.section}.{key}"
        if former not in FORMER_KEYS:
            return [key]
        current = FORMER_KEYS[former]
        text = f"{former} is now {current}; rename it in the config file"
        warnings.warn(text, FormerKeyWarning, stacklevel=1)
        return current.split(".")[1:]


class DataSection(Section):
    """The section `data`."""

    section = "data"


class EvalSection(Section):
    """The section `eval`."""

    section = "eval"


class Config(ml_collections.ConfigDict):
    """A whole config, in which former keys can be set."""

    def __setitem__(self, key: str, value: Any) -> None:
        kind = {"data": DataSection, "eval": EvalSection}.get(key)
        is_mapping = isinstance(value, dict | ml_collections.ConfigDict)
        if kind and is_mapping and not isinstance(value, kind):
            value = kind(value)
        super().__setitem__(key, value)
