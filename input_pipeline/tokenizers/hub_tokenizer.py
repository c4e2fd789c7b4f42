"""Fetches the tokenizer of a model from the hub."""

from pathlib import Path

from experiment.schema import ConfigError
from input_pipeline.tokenizers.added_tokens import FILES_BESIDE
from input_pipeline.tokenizers.byte_level import MERGES_BESIDE
from input_pipeline.tokenizers.published_files import (
    CHAT_FILE_NAME,
    FILE_NAMES,
    MARIAN_TARGET,
    NEEDED_BESIDE,
    TARGET_FILE_NAME,
)
from storage import hub

READ = {
    *FILE_NAMES, *NEEDED_BESIDE.values(), *MERGES_BESIDE.values(), *FILES_BESIDE, CHAT_FILE_NAME,
    MARIAN_TARGET, TARGET_FILE_NAME,
}  # fmt: skip


def is_tokenizer_file(name: str) -> bool:
    """Whether a file of a published model belongs to its tokenizer."""
    return name in READ


def fetch_tokenizer(key: str, address: str) -> Path:
    """Returns the local file of the tokenizer at an address, with those that it needs beside it."""
    place = hub.parse(key, address)
    found = hub.names(key, place)
    usable = [name for name in FILE_NAMES if {name, NEEDED_BESIDE.get(name, name)} <= found]
    if not usable:
        raise ConfigError(
            f"{key}={place} has none of {', '.join(FILE_NAMES)}; it has {hub.listed(found)}"
        )
    return hub.fetch(key, place, sorted(found & READ)) / usable[0]
