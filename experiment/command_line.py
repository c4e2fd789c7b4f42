"""The command line of all scripts: flags, --help, and refusals of bad input."""

import contextlib
import errno
import logging as std_logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from configs.renamed_keys import FormerKeyWarning
from experiment import help_text
from experiment.former_keys import current_name
from experiment.option_flags import add_options, define_config_file, option_defaults, value_of
from experiment.other_names import OTHER_UNITS
from experiment.schema import (
    HUB,
    OBJECT_STORAGE,
    RUN_SCHEMES,
    ConfigError,
    did_you_mean,
    refuse_remote,
)
from input_pipeline.config import source_table
from training.exits import AT_ONCE, EndedError

PATH_FLAGS = ("workdir", "input", "output", "draft_workdir")  # convert.py checks its own
OF_A_RUN = "Changes to the run's config."  # help of --config in scripts that read a run
TAKES = {int: "a whole number", float: "a number", bool: "True or False"}  # by the type of a key
CANNOT_WRITE = 74  # the exit code when a disk is full or fails, as of training/exits.py
DISK_PROBLEMS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
MAKE_ROOM = "make room, and run the same command again"
BAD_INPUT = 2  # the exit code when the fault is in the config, the data or the command line


def config_flag(
    default: str | Callable[[], str], open_hub_run: Callable[[str, str], Path] | None = None
) -> flags.FlagHolder:
    """Defines --config=FILE[:ARCHITECTURE] with its overrides, --config.a.b=v.

    ARCHITECTURE may be a model on the hub if `open_hub_run` turns its address into a workdir.
    `default` is a file, or a function that finds it and may raise ConfigError. Without --config,
    ml_collections applies the overrides to the default file when the flag is defined, so errors are
    handled here, before `launch`.
    """
    with _refusals():
        given = value_of("config", sys.argv)
        if given.partition(":")[2].startswith(f"{HUB}://") and open_hub_run is not None:
            given = _with_workdir(given, open_hub_run)
        for path in (given, given.partition(":")[2]):
            refuse_remote("--config", path)
        if given and (problem := help_text.missing_config(given)):
            raise ConfigError(problem)
        default = default() if callable(default) else default
        if not Path(default).is_file():  # the script was started from another directory
            default = str(help_text.ROOT / default)
        return define_config_file(default, "The experiment.")


def _with_workdir(given: str, open_hub_run: Callable[[str, str], Path]) -> str:
    """The value of --config with a workdir in place of an address; also in sys.argv."""
    file, _, address = given.partition(":")
    changed = f"{file}:{open_hub_run('--config', address)}"
    sys.argv[1:] = [each.replace(given, changed) for each in sys.argv[1:]]
    return changed


def recorded_config_flag(read: Callable[[str], Mapping[str, Any]]) -> flags.FlagHolder:
    """Defines --config.a.b=v as changes to the config that `read` returns for --workdir=DIR.

    That config defines the flags, so DIR is read from the command line first. Without it, as in
    --help, the defaults are used.
    """
    from configs import default

    with _refusals():
        workdir = value_of("workdir", sys.argv)
        refuse_remote("--workdir", workdir, RUN_SCHEMES)
        if given := value_of("config", sys.argv):
            raise ConfigError(
                f"--config={given} is not for this script, which takes the config of the run in "
                "--workdir; leave it out, and change keys with --config.KEY=VALUE"
            )
        config = ml_collections.ConfigDict(read(workdir)) if workdir else default.get_config()
        add_options(config, sys.argv)
        return config_flags.DEFINE_config_dict("config", config, OF_A_RUN)


def parse_config(path: str, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The config that a script reads from --config=PATH and --config.KEY=VALUE for each override.

    It does not touch the flags of this process. Raises ConfigError, with the script's message.
    """
    refuse_remote("--config", path)
    if problem := help_text.missing_config(path):
        raise ConfigError(problem)
    overrides = {current_name(key): value for key, value in overrides.items()}
    argv = ["", f"--config={path}", *(f"--config.{k}={v}" for k, v in overrides.items())]
    values = flags.FlagValues()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # how ml_collections loads a file
            define_config_file(None, "The experiment.", flag_values=values, sys_argv=argv)
            values(argv)
        _ = values.config.steps  # a file that failed to load raises only here
        return values.config.to_dict()
    except Exception as error:  # whatever a config file or an override may raise
        raise ConfigError(_explain(argv, error)) from None


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Prepares the command line; if it is wrong, prints the problem and ends the script."""
    _rewrite_arguments()
    _show_former_keys()
    flags.DEFINE_bool("help_keys", False, "Lists all keys of the config.")
    try:
        yield
    except ConfigError as error:
        _refuse(str(error))
    except Exception as error:  # whatever a config file or an override may raise
        _refuse(_explain(sys.argv, error))


def _rewrite_arguments() -> None:
    """Reduces a request for help to --help, and replaces keys by their current names."""
    if help_text.asks_for_help(sys.argv):
        sys.argv[1:] = ["--help"]
    for number, argument in enumerate(sys.argv[1:], start=1):
        name, is_given, value = argument.partition("=")
        flag, _, key = name.partition(".")
        if key and flag in ("--config", "-config"):
            sys.argv[number] = f"{flag}.{current_name(key)}{is_given}{value}"


def _show_former_keys() -> None:
    """From now on, each former key in a config file is one line on stderr, shown once."""
    show, shown = warnings.showwarning, set()

    def show_in_a_line(message, category, *more):
        if category is not FormerKeyWarning:
            show(message, category, *more)
        elif str(message) not in shown:
            shown.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show_in_a_line


def launch(
    main: Callable[..., None], *, more_options: bool = False, in_buckets: Collection[str] = ()
) -> None:
    """Runs a script: bad input becomes a few lines on stderr and exit code 2, not a traceback.

    With `more_options`, the arguments after `--` are passed to main. `in_buckets` are flags for
    files that may also be in object storage.
    """
    if help_text.asks_for_help(sys.argv):
        help_text.show(_help())
        sys.exit()

    def checked_main(argv):
        refuse_closed_streams()
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # libraries log much at INFO
            logging.get_absl_handler().setFormatter(LogLine())
        for name in PATH_FLAGS:
            if name in flags.FLAGS:
                schemes = RUN_SCHEMES if name.endswith("workdir") else ()
                schemes = OBJECT_STORAGE if name in in_buckets else schemes
                refuse_remote(f"--{name}", flags.FLAGS[name].value or "", schemes)
        if len(argv) > 1 and not (more_options and argv[1].startswith("--")):
            meant = f". Did you mean --config={argv[1]}?" if argv[1].endswith(".py") else ""
            raise ConfigError(f"unexpected argument {argv[1]!r}; options start with --{meant}")
        if "help_keys" in flags.FLAGS and flags.FLAGS.help_keys:
            help_text.show(help_text.key_listing(flags.FLAGS.config.to_dict()))
            return
        if more_options:
            main(argv[1:])
        else:
            main()

    try:
        app.run(checked_main, flags_parser=_parse_flags)
    except ConfigError as error:
        _refuse(str(error))
    except EndedError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(AT_ONCE)
    except OSError as error:
        if error.errno not in DISK_PROBLEMS:
            raise
        _end(_disk_problem(error))
    except SystemExit:
        _flush_output()
        raise


def refuse_closed_streams() -> None:
    """Refuses a closed standard output, as after `>&-`: its number would go to the next file."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise ConfigError("standard output is closed; send it to a file, or to /dev/null")


def _flush_output() -> None:
    """Ends the script if its last output cannot be written; Python would only mention it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its reader has ended
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest
        _end(f"standard output cannot be written ({error.strerror}); {MAKE_ROOM}")


def _disk_problem(error: OSError) -> str:
    what = error.filename or "standard output or a file"
    if error.errno == errno.EIO:  # also what a bucket cannot do
        remedy = "check the disk or the network, and run the same command again"
        return f"{what}: input or output failed ({error.strerror}); {remedy}"
    return f"{what} cannot be written ({error.strerror}); {MAKE_ROOM}"


def _end(problem: str) -> NoReturn:
    with contextlib.suppress(OSError):
        print(problem, file=sys.stderr)
    sys.exit(CANNOT_WRITE)


def _help() -> str:
    config = None
    if "config" in flags.FLAGS:
        flag = flags.FLAGS["config"]
        config = "" if flag.help == OF_A_RUN else config_flags.get_config_filename(flag)
    return help_text.help_text(sys.modules["__main__"].__doc__ or "", _own_flags(), config)


def _own_flags() -> list[flags.Flag]:
    """The flags that the script itself defines, in order."""
    return flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])


class LogLine(std_logging.Formatter):
    """Formats a log record as `warning: what happened`, like the other lines of a run's log."""

    def format(self, record: std_logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


def _refuse(reason: str) -> NoReturn:
    from storage.mirror import with_urls  # here, because it imports much

    print(with_urls(reason), file=sys.stderr)
    sys.exit(BAD_INPUT)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        remaining = flags.FLAGS(argv)
        if "config" in flags.FLAGS:
            _ = flags.FLAGS.config.steps  # a file that failed to load raises only here
        return remaining
    except Exception as error:  # whatever a config file or a flag may raise
        raise ConfigError(_explain(argv, error)) from None


def _explain(argv: list[str], error: Exception) -> str:
    """One line that says what is wrong with the command line."""
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        own = [flag.name for flag in _own_flags()]
        return help_text.unknown_flag(
            name, value_of(name, argv), own, has_config="config" in flags.FLAGS
        )
    overrides = [
        a.lstrip("-").partition("=")[0] for a in argv if a.lstrip("-").startswith("config.")
    ]
    if isinstance(error, flags.IllegalFlagValueError):
        if isinstance(error.__context__, ConfigError):  # already says what is wrong
            return str(error.__context__)
        for override in overrides:
            if problem := _wrong_type(override, value_of(override, argv)):
                return problem
    if isinstance(error, AttributeError | KeyError) and overrides:
        config = _all_keys()
        for override in overrides:
            section = config
            path = override.split(".")[1:]
            for depth, key in enumerate(path):
                if not isinstance(section, Mapping) or key not in section:
                    known = section if isinstance(section, Mapping) else ()
                    name = ".".join(path[: depth + 1])
                    return f"{name} is not a config key{_key_meant(override, key, known)}"
                section = section[key]
    if unknown := _unknown_key(error):
        return unknown
    # The error of a config file contains a traceback; only its first and last lines are useful.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    if isinstance(error, OSError):
        return f"the config cannot be loaded: {lines[-1]}"
    if len(lines) == 1:
        return lines[0]
    where = lines[0].removesuffix("Error whilst parsing config file:").strip()
    return f"{where} {re.sub(r'^[A-Za-z]+Error: ', '', lines[-1])}"


def _all_keys() -> dict[str, Any]:
    """The defaults of all keys, with the options of all sources."""
    from configs import default

    config = default.get_config().to_dict()
    config["data"]["options"] = option_defaults(list(source_table()))
    return config


def _unknown_key(error: Exception) -> str:
    """Says so if a config file sets a key that does not exist."""
    if not (key := _locked_out(error)):
        return ""
    meant = " or ".join(help_text.meant_keys(key, help_text.key_names())[:3])
    hint = f" Did you mean {meant}?" if meant else " --help_keys lists all keys."
    return f"the config file sets {key}, which is not a config key.{hint}"


def _locked_out(error: Exception) -> str:
    """The key that a config file could not add to the locked config, or ""."""
    found = re.search(r'Key "(\w+)" does not exist and cannot be added', str(error))
    return found[1] if found else ""


def _wrong_type(override: str, given: str) -> str:
    """The problem if a key that takes a number or a truth value is given anything else, or ""."""
    value = _all_keys()
    name = override.partition(".")[2]
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    parsers = {int: flags.IntegerParser, float: flags.FloatParser, bool: flags.BooleanParser}
    if type(value) not in parsers:
        return ""
    try:
        parsers[type(value)]().parse(given)
        return ""
    except (TypeError, ValueError):
        return f"{name} takes {TAKES[type(value)]}, not {given!r}"


def _key_meant(override: str, key: str, known: Iterable[str]) -> str:
    """A hint at the key that --config.a.b may mean; `known` are the keys of the same section."""
    if key in OTHER_UNITS:
        return f"; --config.{' '.join(OTHER_UNITS[key])}."
    keys = help_text.key_names()
    meant = help_text.meant_keys(key, keys, exact=True)
    if not meant and (guess := did_you_mean(key, known)):
        return f".{guess}"
    meant = meant or help_text.meant_keys(override.partition(".")[2], keys)
    listed = " or ".join(f"--config.{each}" for each in meant[:3])
    return f". Did you mean {listed}?" if meant else "."


def default_workdir(config_path: str) -> str:
    """runs/dates for configs/dates.py, runs/dates-t5_style for configs/dates.py:t5_style."""
    path, _, architecture = config_path.partition(":")
    if Path(architecture).is_absolute():
        architecture = Path(architecture).name
    return str(Path("runs", "-".join(filter(None, (Path(path).stem, architecture)))))
