"""The text of --help and --help_keys, and hints for unknown flags and configs."""

import ast
import difflib
import io
import os
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from configs import default
from experiment import other_names

ROOT = Path(__file__).resolve().parent.parent
# Files in configs/ that are not experiments
NO_CONFIGS = ("__init__", "architectures", "renamed_keys")
HELP = ("help", "helpshort", "h", "?")
WIDTH, COLUMN = 100, 30


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether the command line has --help or a variant of it, before any `--`."""
    before_dashes = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    return any(a.startswith("-") and a.lstrip("-") in HELP for a in before_dashes)


def show(text: str) -> None:
    """Prints a text; ignores it if the reader closes the pipe early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest of the output


def help_text(doc: str, own: Iterable[flags.Flag], config: str | None) -> str:
    """The text of --help: the script's docstring and flags, the config files and all keys.

    config: the default config file; "" if the script reads a run's config; None if it reads none.
    """
    lines = [*doc.strip().splitlines(), "", "Flags:"]
    if config:
        lines += _flag(
            "--config=FILE[:ARCHITECTURE]",
            f"The experiment; default: {config}. An "
            "ARCHITECTURE is a name in configs/architectures.py, or a run's workdir.",
        )
    for flag in own:
        lines += _flag(_usage(flag), _meaning(flag))
    if config is not None:
        what = "the experiment's" if config else "the run's"
        lines += _flag(
            "--config.KEY=VALUE",
            f"Changes one key of {what} config, such as "
            "--config.steps=100 or --config.data.batch_size=32.",
        )
        lines += _flag(
            "--help_keys", f"Lists all keys of {what} config: their values and what they mean."
        )
    if config:
        lines += ["", "Configs:"]
        for path in configs():
            lines += _flag(str(path), _first_line(path))
    if config is not None:
        lines += ["", "Keys (--help_keys shows their values and what they mean):", *_keys()]
    return "\n".join(lines)


def _flag(usage: str, meaning: str) -> list[str]:
    """The lines of a flag: usage and meaning in two columns."""
    lines = textwrap.wrap(meaning, WIDTH - COLUMN, break_on_hyphens=False) or [""]
    first = f"  {usage:<{COLUMN - 4}}  "
    above = [first.rstrip()] if len(first) > COLUMN else []
    indented = [" " * COLUMN + line for line in lines]
    return [*above, *indented] if above else [first + lines[0], *indented[1:]]


def _usage(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--{flag.name}"
    values = getattr(flag.parser, "enum_values", None)
    return f"--{flag.name}={'|'.join(values) if values else '...'}"


def _meaning(flag: flags.Flag) -> str:
    # Remove the text that absl adds: the choices, which _usage shows, and how to repeat the flag.
    meaning = re.sub(r"^<[^>]*>: |;\s+repeat this option.*$", "", flag.help, flags=re.DOTALL)
    is_said = flag.default in ("", None, False, []) or "default" in meaning
    return meaning if is_said else f"{meaning} (default: {flag.default})"


def configs() -> list[Path]:
    """The config files, relative to the working directory."""
    found = sorted((ROOT / "configs").glob("*.py"))
    return [Path(os.path.relpath(path)) for path in found if path.stem not in NO_CONFIGS]


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _keys() -> Iterator[str]:
    config = default.get_config().to_dict()
    sections = {"": [key for key, value in config.items() if not isinstance(value, Mapping)]}
    sections |= {f"{k}.": list(v) for k, v in config.items() if isinstance(v, Mapping)}
    for name, keys in sections.items():
        first, *others = textwrap.wrap(", ".join(keys), WIDTH - 14)
        yield f"  {name:<12}{first}"
        yield from (" " * 14 + line for line in others)


def key_names() -> list[str]:
    """The dotted names of all config keys."""
    return list(_flat(default.get_config().to_dict()))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for key, value in config.items():
        is_section = isinstance(value, Mapping) and not prefix
        found |= _flat(value, f"{key}.") if is_section else {f"{prefix}{key}": value}
    return found


def key_listing(config: Mapping[str, Any]) -> str:
    """Every key with its value in `config`, its default if that differs, and its comment.

    Order and comments come from configs/default.py.
    """
    source = Path(default.__file__).read_text()
    places = _places(ast.parse(source))
    usual, values = _flat(default.get_config().to_dict()), _flat(config)
    lines = ["# Change a key with --config.KEY=VALUE."]
    begin = min(places)
    for number, (code, comment) in enumerate(_code_and_comments(source), start=1):
        keys = places.get(number, [])
        if not keys and comment and not code and number > begin - 2:
            lines.append(f"# {comment}")
        for key in keys:
            value = values.get(key, usual[key])
            line = f"{key}={value!r}"
            said = [f"default: {usual[key]!r}"] if value != usual[key] else []
            said += [comment] if comment and key == keys[-1] else []
            lines.append(f"{line}  # {'; '.join(said)}" if said else line)
        if not code and not comment and number > begin and lines[-1]:
            lines.append("")
    return "\n".join(lines).strip()


def _code_and_comments(source: str) -> list[tuple[bool, str]]:
    """For each line, whether it has code, and its comment."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return [
        (bool(line.strip()) and not line.strip().startswith("#"), comments.get(number, ""))
        for number, line in enumerate(source.splitlines(), start=1)
    ]


def _places(tree: ast.AST) -> dict[int, list[str]]:
    """The keys that configs/default.py sets, by line number."""
    found: dict[int, list[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        name, value = node.targets[0].attr, node.value
        if isinstance(value, ast.Call):  # config.model = ConfigDict(dict(width=..., ...))
            for keyword in value.args[0].keywords:
                found.setdefault(keyword.value.end_lineno, []).append(f"{name}.{keyword.arg}")
        else:
            found.setdefault(value.end_lineno, []).append(name)
    return found


def unknown_flag(name: str, value: str, own: Sequence[str], *, has_config: bool) -> str:
    """The message for a flag that does not exist. `own` are the script's flags."""
    if has_config and (unit := other_names.OTHER_UNITS.get(name.replace("-", "_"))):
        return f"--{name} is not a flag; --config.{' '.join(unit)}."
    keys = key_names() if has_config else []
    behind = f"={value}" if value else "=..."
    meant = [f"--config.{key}{behind}" for key in meant_keys(name, keys, exact=True)]
    if not meant:
        plain = other_names.FLAGS.get(name, name).replace("-", "_")
        close = difflib.get_close_matches(plain, [*own, *(["config"] if has_config else [])], n=1)
        meant = [f"--{each}{behind if value else ''}" for each in close]
    meant = meant or [f"--config.{key}{behind}" for key in meant_keys(name, keys)]
    hint = f"Did you mean {' or '.join(meant[:3])}?" if meant else "See --help."
    return f"--{name} is not a flag. {hint}"


def meant_keys(name: str, keys: Sequence[str], *, exact: bool = False) -> list[str]:
    """The config keys that a name may mean.

    The name may be another codebase's, the end of a key, or similar to a key (unless `exact`).
    """
    name = name.replace("-", "_")
    if name in other_names.KEYS:
        return [key for key in other_names.KEYS[name] if key in keys]
    ends = lambda end: [key for key in keys if f".{key}".endswith(f".{end}")]  # noqa: E731
    if exact or ends(name):
        return ends(name)
    close = difflib.get_close_matches(name, [key.rpartition(".")[2] for key in keys], n=1)
    return ends(close[0]) if close else difflib.get_close_matches(name, keys, n=1)


def missing_config(value: str) -> str:
    """The message for --config=value if there is no such file, else ""."""
    path, _, argument = value.partition(":")
    if Path(path).is_file():
        return ""
    known = {each.stem: each for each in configs()}
    close = difflib.get_close_matches(Path(path).stem, known, n=1)
    if not close:
        return f"--config={value}: no such file. See --help for the list."
    meant = f"{known[close[0]]}:{argument}" if argument else str(known[close[0]])
    return f"--config={value}: no such file. Did you mean --config={meant}?"
