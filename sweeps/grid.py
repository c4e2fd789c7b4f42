"""Grids: 'model.position=rope,alibi;seed=0..4' -> the values of each key, and named variants."""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment.command_line import default_workdir
from experiment.schema import ConfigError

SEED = "seed"  # the key whose values are repetitions, not variants
CONFIG = "config"  # in place of a config key: another config file, or FILE:ARCHITECTURE
LONGEST_NAME = 120  # characters; names become directories
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
QUOTES, OPENING, CLOSING = "'\"", "([{", ")]}"


def parse_grid(text: str, flag: str = "--grid") -> dict[str, list[str]]:
    """The values of each key, as text, in the order in which they are written."""
    grid: dict[str, list[str]] = {}
    for part in _split(text, ";", flag):
        key, is_given, values = part.partition("=")
        key = key.strip()
        if not (key and is_given):
            raise ConfigError(f"{flag}: {part!r} is not KEY=VALUE,VALUE,...")
        if key in grid:
            raise ConfigError(f"{flag}: {key} is there twice; write all its values once")
        grid[key] = [value for each in _split(values, ",", flag, key) for value in _range(each)]
    if not grid:
        raise ConfigError(f"{flag} is empty; write KEY=VALUE,VALUE;KEY=..., such as seed=0..4")
    return grid


def _split(text: str, separator: str, flag: str, key: str = "") -> list[str]:
    """Parts between separators that are outside of quotes and brackets; without the quotes."""
    parts, part, quote, depth = [], "", "", 0
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == separator and not depth:
            parts.append(part)
            part = ""
            continue
        part += character
    if quote or depth:
        raise ConfigError(f"{flag}: a quote or bracket in {text!r} is not closed")
    parts = [each.strip() for each in [*parts, part]]
    if not key:  # between keys, and after the last
        return [each for each in parts if each]
    if "" in parts:
        raise ConfigError(
            f"{flag}: {key} has an empty value in {text!r}; an empty text is written '' in quotes"
        )
    is_quoted = [len(each) > 1 and each[0] == each[-1] and each[0] in QUOTES for each in parts]
    return [each[1:-1] if q else each for each, q in zip(parts, is_quoted, strict=True)]


def _range(value: str) -> list[str]:
    """0..4 is 0, 1, 2, 3, 4; any other value is itself."""
    if not (found := RANGE.fullmatch(value)):
        return [value]
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ConfigError(f"--grid: the range {value} is empty; write it as {last}..{first}")
    return [str(number) for number in range(first, last + 1)]


def variants_of(grid: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """All combinations of the values of a grid, by name. Seeds are not among them."""
    keys = [key for key in grid if key != SEED]
    names = short_names(keys)
    variants: dict[str, dict[str, str]] = {}
    for values in itertools.product(*(grid[key] for key in keys)):
        overrides = dict(zip(keys, values, strict=True))
        name = "+".join(
            file_stem(value) if key == CONFIG else f"{names[key]}={value}"
            for key, value in overrides.items()
        )
        name = safe_name(name or "config")
        if name in variants:
            raise ConfigError(
                f"--grid: two variants are named {name} ({_shown(variants[name])} and "
                f"{_shown(overrides)}); give each value once, or name variants in a study"
            )
        variants[name] = overrides
    return variants


def file_stem(config: str) -> str:
    """dates-t5_style for configs/dates.py:t5_style."""
    return Path(default_workdir(config)).name


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the whole key where that is not unique."""
    last = {key: key.rpartition(".")[2] for key in keys}
    ends = list(last.values())
    return {key: end if ends.count(end) == 1 else key for key, end in last.items()}


def safe_name(name: str) -> str:
    """A name that can be a directory, and an item of a comma-separated list."""
    safe = re.sub(r"[^\w.+=-]+", "_", name).strip("._") or "cell"
    if len(safe) <= LONGEST_NAME:
        return safe
    return f"{safe[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _shown(overrides: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in overrides.items()) or "no change"
