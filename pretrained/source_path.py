"""Checks that `--from` is the directory of a published model; errors say what it is instead.

It also refuses a published model where a run's workdir is needed.
"""

import re
from pathlib import Path

from experiment.schema import ConfigError, did_you_mean
from experiment.untrusted_files import LARGEST_JSON, parse_json, read_text
from pretrained import model_files
from storage.hub import is_hub_address, spelling

NEEDED = (
    f"a directory with {model_files.CONFIG}, {model_files.WEIGHTS} and tokenizer files is needed"
)
HUB_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+(?:/(?!tree/|blob/)[\w.-]+)?)"
    r"(?:/(?:tree|blob)/([\w.-]+))?.*"
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MOST_LISTED = 8  # the most files of a directory in a message
TAKE_ADDRESSES = ("init_from", "task.teacher")  # keys that take hf://ORG/NAME


def require_model_directory(source: str, flag: str = "--from") -> Path:
    """The directory that the flag names; raises ConfigError if it has no config.json."""
    path = Path(source)
    if path.is_file():
        raise ConfigError(f"{flag}={source} is {_what_file(path)}")
    if not path.is_dir():
        raise ConfigError(f"{flag}={source} {_why_missing(source)}")
    if not (path / model_files.CONFIG).exists():
        raise ConfigError(f"{flag}={source} has no {model_files.CONFIG}{_what_directory(path)}")
    return path


def refuse_published(key: str, run: str | Path) -> None:
    """Refuses a published model, or its name on the hub, where WORKDIR or WORKDIR:STEP is needed.

    `key` is the flag or config key. The code that reads the run finds other problems.
    """
    workdir = re.sub(r":\d+$", "", str(run))
    if is_hub_address(workdir) and key in TAKE_ADDRESSES:
        return
    refuse_published_directory(key, workdir)
    if name := _hub_name(workdir):
        remedy = f"write {key}={name}" if key in TAKE_ADDRESSES else _import_command(key, name)
        raise ConfigError(
            f"{key}={run} is not a run's directory; check it for a typing error, or if it is a "
            f"model on the hub: {remedy}"
        )


def refuse_published_directory(key: str, workdir: str | Path) -> None:
    """Refuses a directory that holds a published model and no run."""
    path = Path(workdir)
    if not path.is_dir():
        return
    try:
        config = parse_json(read_text(path / model_files.CONFIG, LARGEST_JSON))
    except (OSError, ValueError):  # ConfigError is a ValueError
        config = {}
    config = config if isinstance(config, dict) else {}
    if "model" in config:  # the config of a run
        return
    has_weights = any((path / name).exists() for name in model_files.WEIGHT_FILES)
    if has_weights or "model_type" in config:
        raise ConfigError(
            f"{key}={workdir} is a published model, not a run; import it first: "
            f"{_import_command(key, workdir)}"
        )


def _import_command(key: str, directory: str | Path) -> str:
    return f"python convert.py --from={directory} --to=WORKDIR, then {key}=WORKDIR"


def _what_file(path: Path) -> str:
    if path.suffix in model_files.FORMATS:
        return f"{model_files.FORMATS[path.suffix]}; {NEEDED}"
    is_part = path.suffix == ".safetensors" or path.name == model_files.CONFIG
    if is_part and (path.parent / model_files.CONFIG).is_file():
        return f"a file; give its directory, with all files of the model: --from={path.parent}"
    if path.suffix == ".safetensors":
        return f"a file of weights alone, without the {model_files.CONFIG} of its model; {NEEDED}"
    return f"a file; {NEEDED}"


def _why_missing(source: str) -> str:
    workdir, _, step = source.rpartition(":")
    if step.isdecimal() and Path(workdir).is_dir():
        return f"names step {step} of a run, but {workdir} has no checkpoints of train.py"
    if HUB_ADDRESS.fullmatch(source):
        return f"is an address of the web; write --from={_hub_name(source)}"
    if source.endswith(".gguf"):
        return f"is no file.{_sibling_meant(source)} Check the path"
    if source.startswith("~"):
        return "is no directory: shells do not expand ~ after a flag; write $HOME instead"
    if name := _hub_name(source):
        return f"is no directory here; if it is a model on the hub, write --from={name}"
    return f"is no directory.{_sibling_meant(source)} {NEEDED[0].upper()}{NEEDED[1:]}"


def _hub_name(source: str) -> str:
    """The address, hf://..., of the model that may be meant; "" if a local path is meant."""
    if found := HUB_ADDRESS.fullmatch(source):
        name, revision = found.groups()
        return spelling(name) + (f"@{revision}" if revision not in (None, "main") else "")
    path = Path(source)
    if not source or path.exists():
        return ""
    # If the parent directory exists, a local path is meant.
    if HUB_NAME.fullmatch(source) and not path.parent.is_dir():
        return spelling(source)
    is_word = "/" not in source and not source.startswith("~")
    return spelling(source) if is_word and not _sibling_meant(source) else ""


def _sibling_meant(source: str) -> str:
    path = Path(source)
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return did_you_mean(path.name, siblings)


def _what_directory(path: Path) -> str:
    """The rest of the message "DIR has no config.json": what DIR has, and what to do."""
    names = sorted(each.name for each in path.iterdir())
    if not names:
        return f": it is empty; {NEEDED}"
    listed = ", ".join(names[:MOST_LISTED])
    listed += f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"; it has {listed}; {_advice(path, names)}"


def _advice(path: Path, names: list[str]) -> str:
    if "adapter_config.json" in names:
        return "this is an adapter (LoRA), not the model that it adapts"
    patterns = (
        f"*/{model_files.CONFIG}",
        f"snapshots/*/{model_files.CONFIG}",
    )  # the second is the hub's cache
    deeper = [found.parent for pattern in patterns for found in sorted(path.glob(pattern))]
    deeper = [each for each in deeper if any((each / w).exists() for w in model_files.WEIGHT_FILES)]
    if deeper and "modules.json" in names:  # sentence-transformers' first layout
        return f"copy the files of {deeper[0].name} into it, next to modules.json"
    if deeper:
        return f"did you mean --from={deeper[0]}?"
    others = [name for name in names if Path(name).suffix in model_files.FORMATS]
    if others:
        return f"{others[0]} is {model_files.FORMATS[Path(others[0]).suffix]}; {NEEDED}"
    return NEEDED
