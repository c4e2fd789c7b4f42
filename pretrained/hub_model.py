"""Fetches a published model from the hub: the files that convert.py reads, and no others."""

import re
from collections.abc import Collection
from pathlib import Path

from experiment.schema import ConfigError
from input_pipeline.tokenizers.hub_tokenizer import is_tokenizer_file
from pretrained import image_processor, model_files, sentence
from storage import hub

READ = {
    model_files.CONFIG, model_files.GENERATION, model_files.INDEX, image_processor.FILE,
    sentence.MODULES, sentence.SETTINGS, *sentence.LENGTHS,
}  # fmt: skip
POOLING = re.compile(rf"[^/]*Pooling/{re.escape(model_files.CONFIG)}")  # of sentence-transformers


def is_read(name: str) -> bool:
    """Whether convert.py may read a file of this name in the directory of a published model."""
    is_weights = "/" not in name and name.endswith(".safetensors")
    return is_weights or name in READ or bool(POOLING.fullmatch(name)) or is_tokenizer_file(name)


def fetch_model(key: str, address: str) -> Path:
    """Returns a local directory with the model at an address; `key` is the flag, for errors.

    Small files come first, so that a model without usable weights is refused before any download.
    """
    place = hub.parse(key, address)
    found = hub.names(key, place)
    if model_files.CONFIG not in found:
        raise ConfigError(
            f"{key}={place} has no {model_files.CONFIG}; {_advice(key, place, found)}"
        )
    if not found.intersection(model_files.WEIGHT_FILES):
        raise ConfigError(f"{key}={place} {model_files.no_weights(found)}")
    read = [name for name in found if is_read(name) and not name.endswith(".safetensors")]
    if model_files.WEIGHTS in found:  # as model_files.Tensors does
        read = [name for name in read if name != model_files.INDEX]
    directory = hub.fetch(key, place, sorted(read))
    if model_files.WEIGHTS in found:
        return hub.fetch(key, place, [model_files.WEIGHTS])
    shards = model_files.shards(directory)
    if missing := [name for name in shards if name not in found]:
        raise ConfigError(
            f"{key}={place}: {model_files.INDEX} names {missing[0]}, which the repository does not "
            "have; choose another revision or model"
        )
    return hub.fetch(key, place, shards)


def _advice(key: str, place: hub.HubAddress, found: Collection[str]) -> str:
    if "adapter_config.json" in found:
        return (
            "it is an adapter (LoRA) for another model: merge it into that model with peft's "
            "merge_and_unload, and save the result with save_pretrained"
        )
    deeper = [
        n.removesuffix(f"/{model_files.CONFIG}")
        for n in found
        if n.endswith(f"/{model_files.CONFIG}")
    ]
    for below in sorted(deeper, key=len):
        if any(f"{below}/{name}" in found for name in model_files.WEIGHT_FILES):
            start = f"{place.subdirectory}/" if place.subdirectory else ""
            meant = hub.HubAddress(place.repo, place.revision, start + below)
            return f"did you mean {key}={meant}?"
    return f"it has {hub.listed(found)}"
