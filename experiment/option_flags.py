"""Flags for the options of a data source: --config.data.options.KEY=VALUE.

ml_collections takes flags only for keys that a config has, and few configs set `data.options`. So
an option that the command line names gets the default that its source declares, which also says
its type; then its flag is like any other.
"""

import ast
import contextlib
import dataclasses
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.config import source_table

FLAG = re.compile(r"--?(?:no)?config\.data\.options\.(\w+)")


def define_config_file(default: str | None, meaning: str, **where: Any) -> flags.FlagHolder:
    """As `config_flags.DEFINE_config_file("config", default, meaning)`, and takes these flags.

    `where` may have `flag_values` and `sys_argv`, as there.
    """
    # Without a default, nothing is loaded before the flag has the parser below.
    holder = config_flags.DEFINE_config_file("config", None, meaning, **where)
    flag = where.get("flag_values", flags.FLAGS)["config"]
    flag.parser = _ConfigFiles(parser=flag.parser, sys_argv=where.get("sys_argv"))
    flags.set_default(holder, default)
    return holder


class _ConfigFiles(flags.ArgumentParser):
    """Loads a config file, and adds the options that the command line names."""

    def __init__(self, parser: flags.ArgumentParser, sys_argv: list[str] | None):
        self._parser, self._argv = parser, sys_argv

    def parse(self, argument: str) -> Any:
        config = self._parser.parse(argument)
        argv = sys.argv if self._argv is None else self._argv
        if isinstance(config, ml_collections.ConfigDict):  # not the error of a file
            add_options(config, flags.FLAGS.read_flags_from_files(argv, force_gnu=False))
        return config

    def flag_type(self) -> str:
        return self._parser.flag_type()


def add_options(config: ml_collections.ConfigDict, argv: Sequence[str]) -> None:
    """Adds the options that `argv` names to `config.data.options`, with their defaults.

    Raises ConfigError for an option that no source of the config declares.
    """
    data = config.get("data")
    if not isinstance(data, ml_collections.ConfigDict) or not isinstance(
        data.get("options"), ml_collections.ConfigDict
    ):
        return  # which the schema refuses
    named = dict.fromkeys(found[1] for each in argv if (found := FLAG.match(each)))
    missing = [name for name in named if name not in data.options]
    if not missing:
        return
    sources = _sources(data, argv)
    defaults = option_defaults(sources)
    for name in missing:
        if name not in defaults:
            raise ConfigError(_unknown(name, sources, [*data.options, *defaults]))
        with data.options.unlocked():
            data.options[name] = defaults[name]


def option_defaults(sources: Sequence[str]) -> dict[str, Any]:
    """The defaults of all options that the named sources declare."""
    defaults = {}
    for source in sources:
        if declared := source_table()[source].options:
            defaults |= dataclasses.asdict(declared())
    return defaults


def value_of(flag: str, argv: Sequence[str]) -> str:
    """The value of --flag=value or --flag value; the last one counts, as in absl."""
    found = ""
    for argument, following in itertools.pairwise([*argv, ""]):
        name, is_given, value = argument.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            found = value if is_given else following
    return found


def _sources(data: ml_collections.ConfigDict, argv: Sequence[str]) -> list[str]:
    """The sources of a config with its flags; all there are if the schema will refuse one."""
    mixture = data.get("mixture", ())
    if given := value_of("config.data.mixture", argv):
        mixture = ()
        with contextlib.suppress(ValueError, SyntaxError):  # the flag itself refuses it
            mixture = ast.literal_eval(given)
    source = value_of("config.data.source", argv) or data.get("source")
    names = [source]
    if source in source_table() and not source_table()[source].has_tasks:
        with contextlib.suppress(TypeError, IndexError):  # a mixture that the schema refuses
            names += [str(each[0]).partition(":")[0] for each in mixture]
    names = list(dict.fromkeys(names))
    return names if all(each in source_table() for each in names) else list(source_table())


def _unknown(name: str, sources: Sequence[str], known: Sequence[str]) -> str:
    key = f"data.options.{name}"
    if len(sources) == len(source_table()):
        return f"{key} is not a config key.{did_you_mean(name, known)}"
    owner = f"data.source={sources[0]}" if len(sources) == 1 else " and ".join(sources)
    if not known:
        return f"{key} is not a config key: {owner} has no options"
    listed = ", ".join(sorted(set(known)))
    return f"{key} is not a config key.{did_you_mean(name, known)} The options of {owner}: {listed}"
