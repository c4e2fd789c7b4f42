"""Published models of the hub as runs: hf://ORG/NAME in place of a workdir.

convert.py imports such a model once, in a separate process on the CPU, so that neither the
devices nor the other processes of a job take part in it. The run that it makes is kept in the hub's
cache of assets, under the name of its commit.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from experiment.schema import ConfigError
from input_pipeline.tokenizers.subword import FILE_NAME
from pretrained.hub_model import fetch_model
from storage import hub

SCRIPT = Path(__file__).resolve().parent.parent / "convert.py"
COMPLETE = "checkpoints"  # convert.py makes its target at once, so this is there or nothing is
# Raise this when an import makes other runs than before: those in the cache are then made again.
VERSION = 1
# The variables with which the processes of a job find each other.
OF_A_JOB = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def with_commits(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with the commit in the address of a model on the hub.

    A branch may move, but a run keeps the model that it began with: that of its `recorded` config,
    which is empty for a new run.
    """
    text = config.get("init_from")
    if not isinstance(text, str) or not hub.is_hub_address(text):
        return dict(config)
    given, before = hub.parse("init_from", text), recorded.get("init_from")
    if isinstance(before, str) and hub.is_hub_address(before):
        begun = hub.parse("init_from", before)
        is_same = (begun.repo, begun.subdirectory) == (given.repo, given.subdirectory)
        if is_same and not hub.COMMIT.fullmatch(given.revision):
            return {**config, "init_from": before}
    return {**config, "init_from": str(hub.pinned("init_from", text))}


def data_tokenizer(tokenizer: str, init_from: str) -> str:
    """Returns data.tokenizer; in place of an address, the import's tokenizer if both are one model.

    An import adds the special tokens of the model's config, which the tokenizer's files lack.
    """
    if not (hub.is_hub_address(tokenizer) and hub.is_hub_address(init_from)):
        return tokenizer
    ours, theirs = hub.parse("data.tokenizer", tokenizer), hub.parse("init_from", init_from)
    is_same = (ours.repo, ours.subdirectory) == (theirs.repo, theirs.subdirectory)
    if not is_same or (hub.COMMIT.fullmatch(ours.revision) and ours.revision != theirs.revision):
        return tokenizer
    return str(open_hub_run("init_from", init_from) / FILE_NAME)


def open_hub_run(key: str, address: str) -> Path:
    """Returns the workdir that convert.py makes of a model; `key` is the config key, for errors."""
    place = hub.pinned(key, address)
    name = hashlib.sha256(f"{VERSION} {place}".encode()).hexdigest()[:8]
    name = f"{place.repo.partition('/')[2]}-{place.revision[:8]}-{name}"
    directory = hub.assets_directory(place.repo, "runs") / name
    if not (directory / COMPLETE).is_dir():
        fetch_model(key, str(place))  # here, where its progress and its errors are seen
        logging.info("importing %s to %s", place, directory)
        _convert(key, place, directory)
    return directory


def _convert(key: str, place: hub.HubAddress, directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_JOB}
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), f"--from={place}", f"--to={directory}"],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    if (directory / COMPLETE).is_dir():  # maybe another process was faster
        for line in ended.stderr.splitlines():
            if found := re.fullmatch(r"warning: (.*)", line):
                logging.warning("%s", found[1])
        return
    lines = ended.stderr.strip().splitlines() or [f"convert.py ended with {ended.returncode}"]
    if ended.returncode != 2:  # not a refusal
        lines = [f"{key}={place}: convert.py failed ({lines[-1]})"]
    raise ConfigError([line.replace(f"--from={place}", f"{key}={place}") for line in lines])
