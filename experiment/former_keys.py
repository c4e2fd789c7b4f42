"""Config keys of earlier versions, read under their current names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.renamed_keys import FORMER_KEYS
from input_pipeline.config import source_table
from input_pipeline.sources.embedded.listops import ListOpsOptions

# Keys of `data` that became options of one source, `data.options`.
LISTOPS_KEYS = {
    former.removeprefix("data."): name.removeprefix("data.options.")
    for former, name in FORMER_KEYS.items()
    if name.startswith("data.options.")
}


def current_name(key: str) -> str:
    """The name today of a dotted key of any version: `eval.metrics` for `eval.measures`."""
    return FORMER_KEYS.get(key, key)


def with_current_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of any version, with its keys under their current names.

    A config with both names of a key is left as it is, for the schema to refuse.
    """
    config = dict(config)
    for former, name in FORMER_KEYS.items():
        section, key = former.split(".")
        _, new_key = name.split(".", 1)
        values = {} if key in LISTOPS_KEYS else config.get(section)
        if isinstance(values, Mapping) and key in values and new_key not in values:
            others = {each: value for each, value in values.items() if each != key}
            config[section] = {**others, new_key: values[key]}
    if isinstance(config.get("data"), Mapping):
        config["data"] = _with_options(config["data"])
    return config


def _with_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data section with the former keys of ListOps in `options`, and those complete.

    Every config once had these keys; they are dropped where ListOps is not the source.
    """
    former = {LISTOPS_KEYS[key]: value for key, value in data.items() if key in LISTOPS_KEYS}
    data = {key: value for key, value in data.items() if key not in LISTOPS_KEYS}
    mixture = data.get("mixture")
    mixed = mixture if isinstance(mixture, list | tuple) else ()  # nothing is checked yet
    mixed = [str(each[0]).partition(":")[0] for each in mixed if isinstance(each, list | tuple)]
    for name in (data.get("source"), *mixed):
        source, given = source_table().get(str(name)), data.get("options", {})
        if source and source.options and isinstance(given, Mapping):
            moved = former if source.options is ListOpsOptions else {}
            data["options"] = {**dataclasses.asdict(source.options()), **moved, **given}
    return data
