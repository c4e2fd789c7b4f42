"""Builds frozen dataclasses from mappings, and lists all problems at once.

Each section of a config is a dataclass whose annotations say which values are allowed:

    class Example:
        width: PositiveInt
        norm: Literal["layernorm", "rmsnorm"]

        def problems(self):              # optional: checks that involve several keys
            if self.width % 2:
                yield f"width={self.width} is odd; choose an even number"

`build` is the only way from a mapping to such a dataclass. Defaults live in configs/default.py, so
fields have none; those of a source's own options (`data.options`) live with the source.
"""

import dataclasses
import difflib
import importlib.util
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Annotated, Any, Literal

from experiment import other_names


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The interval that a number must be in; `above` and `below` exclude their ends."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def admits(self, value: float) -> bool:
        """Whether the value is in the interval."""
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        parts = [
            f"{field.name.replace('_', ' ')} {_shown(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if not math.isinf(getattr(self, field.name))
        ]
        return " and ".join(parts)


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The names in a table of which any is allowed. The table is read when a value is checked."""

    table: Callable[[], Iterable[str]]


PositiveInt = Annotated[int, Bounds(at_least=1)]
Count = Annotated[int, Bounds(at_least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(at_least=0)]
Probability = Annotated[float, Bounds(at_least=0, at_most=1)]
DropoutRate = Annotated[float, Bounds(at_least=0, below=1)]


class ConfigError(ValueError):
    """A config, file or directory that cannot be used; one line per problem."""

    def __init__(self, problems: str | Iterable[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint: " Did you mean '...'?" with the most similar known word, or ""."""
    known = [str(each) for each in known]
    same = [each for each in known if each.lower() == str(word).lower()]
    close = same or difflib.get_close_matches(str(word), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


# gs://bucket/run, or gs:/bucket/run, to which pathlib shortens it. A single letter is a drive.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)")
BUCKET = re.compile(r"\w+://[a-z0-9][a-z0-9._-]+[a-z0-9](/|$)")
# The package that reads a scheme of object storage, and the extra that installs it.
OBJECT_STORAGE = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
RUN_SCHEMES = tuple(OBJECT_STORAGE)  # where a run directory may be
HUB = "hf"  # the scheme of models on the Hugging Face hub
INSTEAD_OF = {
    "gs": "use a path on a local disk, and copy with `gcloud storage cp`",
    "s3": "use a path on a local disk, and copy with `aws s3 cp`",
    "hf": "import it with `python convert.py --from=hf://ORG/NAME --to=WORKDIR`",
    "file": "write the path without file://",
    **dict.fromkeys(("http", "https", "ftp"), "download it first"),
}


def path_problems(name: str, path: str | PathLike, schemes: Collection[str] = ()) -> Iterator[str]:
    """Yields a problem if a path has a scheme that is not in `schemes`; `name` is the flag or key.

    Python would treat it as a local directory named `gs:`, which is lost with the machine. A scheme
    in `schemes` needs its package. An address of the hub is not checked further.
    """
    if not is_utf8(text := fspath(path)):
        yield not_utf8(name, text)
        return
    if found := SCHEME.match(text):
        scheme, second_slash = found.groups()
        instead = INSTEAD_OF.get(scheme.lower(), "copy it to a local disk, or mount it there")
        if scheme == HUB and scheme in schemes and second_slash:
            return  # storage/hub.py checks the rest
        if scheme in schemes and second_slash:
            package, extra = OBJECT_STORAGE[scheme]
            if importlib.util.find_spec(package) is None:
                yield f"{name}={text} needs {package}: pip install -e '.[{extra}]'"
            elif not BUCKET.match(text):
                yield f"{name}={text} has no valid name of a bucket; write {scheme}://BUCKET/PATH"
            return
        problem = (
            f"{name}={text} has the scheme {scheme}://, which is not supported here; {instead}"
        )
        yield (problem + ("" if second_slash else f"; a local path of this name is ./{text}"))


def is_utf8(text: str) -> bool:
    """Whether a text can be written in UTF-8; names of files may contain other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(name: str, text: str) -> str:
    """The problem of a flag, key or file whose name or value is not `is_utf8`."""
    return f"{name}={text!r} is no text in UTF-8; rename it"


def refuse_remote(name: str, path: str | PathLike, schemes: Collection[str] = ()) -> None:
    """Raises ConfigError for a path that is not on a local or mounted disk, or in `schemes`."""
    if problems := list(path_problems(name, path, schemes)):
        raise ConfigError(problems)


def has_default(field: dataclasses.Field) -> bool:
    """Whether a field of a dataclass has a default value."""
    return field.default is not dataclasses.MISSING


def build(section: type, values: Mapping[str, Any], path: str) -> tuple[Any, list[str]]:
    """Builds the dataclass `section` from `values`; returns it, or None, and a list of problems.

    `path` is the section's name in the config ("model"), or "" for the top level.
    """
    prefix = f"{path}." if path else ""
    if not isinstance(values, Mapping):  # as in a record that was changed by hand
        return None, [f"{path or 'the config'} must be a group of keys, not {str(values)[:80]!r}"]
    hints = typing.get_type_hints(section, include_extras=True)
    optional = {field.name for field in dataclasses.fields(section) if has_default(field)}
    missing = [key for key in hints if key not in values and key not in optional]
    problems = []
    for key in values:
        if key not in hints:
            guess = other_names.key_hint(key, path)
            guess = guess or f".{did_you_mean(key, missing) or did_you_mean(key, hints)}"
            problems.append(f"{prefix}{key} is not a config key{guess}")
            # A key that was only misspelt is not also missing.
            missing = [each for each in missing if repr(each) not in guess]
    problems += [f"{prefix}{key} is missing" for key in missing]
    fields = {}
    for key, hint in hints.items():
        if key in values:
            fields[key], problem = _check(f"{prefix}{key}", values[key], hint)
            problems += [problem] if problem else []
    if problems:
        return None, problems
    instance = section(**fields)
    if hasattr(instance, "problems"):
        problems = list(instance.problems())
    return instance, problems


def _check(name: str, value: Any, hint: Any) -> tuple[Any, str | None]:
    """`value` converted to the type `hint`, and None; or anything, and the problem."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        kind, bounds = typing.get_args(hint)
        if isinstance(bounds, OneOf):
            return _check(name, value, Literal[*bounds.table()])
        value, problem = _check(name, value, kind)
        if problem is None and not bounds.admits(value):
            problem = f"{name}={value} must be {bounds}"
        return value, problem
    if origin is Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value, None
        listed = ", ".join(map(str, choices))
        return None, f"{name}={value!r} is not one of: {listed}.{did_you_mean(value, choices)}"
    if origin is tuple:
        return _check_tuple(name, value, typing.get_args(hint))
    if origin is Mapping:
        if isinstance(value, Mapping):
            return dict(value), None
        return None, f"{name}={value!r} must be a mapping of names to values"
    if isinstance(hint, types.UnionType):
        raise TypeError(f"{name}: a config value has one type, not {hint}")
    return _check_scalar(name, value, hint)


def _check_tuple(name: str, value: Any, items: tuple[Any, ...]) -> tuple[Any, str | None]:
    """Checks a tuple of any length, `tuple[str, ...]`, or of a fixed one, `tuple[int, int]`."""
    if not isinstance(value, list | tuple):
        return None, f"{name}={value!r} must be a tuple"
    if items[-1] is Ellipsis:
        items = items[:1] * len(value)
    if len(items) != len(value):
        return None, f"{name}={value!r} must have {len(items)} entries"
    checked = [
        _check(f"{name}[{i}]", v, hint)
        for i, (v, hint) in enumerate(zip(value, items, strict=True))
    ]
    problem = next((problem for _, problem in checked if problem), None)
    return tuple(v for v, _ in checked), problem


def _check_scalar(name: str, value: Any, kind: type) -> tuple[Any, str | None]:
    # A bool is not accepted as a number, although it is a subclass of int. An int is a valid float.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        article = "an" if kind is int else "a"
        return None, f"{name}={value!r} must be {article} {kind.__name__}"
    if kind is float:
        try:
            value = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            value = math.inf
        if not math.isfinite(value):
            return None, f"{name}={value} must be a finite number"
    if isinstance(value, str) and not is_utf8(value):
        return None, not_utf8(name, value)
    return kind(value), None
