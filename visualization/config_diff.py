"""What differs between the configs and environments of runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "–"  # of a key that a run does not have


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name. An empty section counts as a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def shown(value: Any) -> str:
    """A value as text: numbers and words as they are, the rest as JSON."""
    if isinstance(value, str):
        return value if value else '""'
    return json.dumps(value, ensure_ascii=False, default=str)


def differences_between(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """(dotted name, value in each config) of every key that is not the same in all of them.

    1 and 1.0 are the same. Configs that are empty, because they could not be read, are left out of
    the comparison, and have ABSENT in each row.
    """
    flats = [flat(config) for config in configs]
    known = [each for each in flats if each]
    rows = []
    for name in dict.fromkeys(name for each in known for name in each):
        values = [each.get(name, ABSENT) for each in known]
        if any(value != values[0] for value in values[1:]):
            rows.append((name, [shown(f[name]) if name in f else ABSENT for f in flats]))
    return rows
