"""Opens what convert.py imports: a directory of the hub, a GGUF file, or an adapter."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from experiment.schema import ConfigError
from pretrained import gguf_model, model_files, peft_adapter, published
from pretrained.catalog import recognise
from pretrained.source_path import require_model_directory


@contextlib.contextmanager
def open_source(
    source: str, base: str, ignore_keys: Collection[str], *, with_tokenizer: bool
) -> Iterator[published.Published]:
    """Yields the published model; `base` is that of an adapter, and "" without one.

    `with_tokenizer` is False if another tokenizer replaces that of a GGUF file.
    """
    adapter = None
    if peft_adapter.is_adapter(source):
        adapter = peft_adapter.read(Path(source))
        source = base or _recorded_base(adapter)
    elif base:
        raise ConfigError(
            f"--base={base} is for adapters, and {source} has no {peft_adapter.CONFIG}; leave it "
            "out"
        )
    tensors, changes = None, {}
    with contextlib.ExitStack() as stack:
        if gguf_model.is_gguf(source):
            model = stack.enter_context(
                gguf_model.as_published(Path(source), ignore_keys, with_tokenizer=with_tokenizer)
            )
            directory, ignore_keys, tensors = model.directory, model.ignore_keys, model.tensors
        else:
            flag = "--from" if adapter is None else "--base"
            directory = require_model_directory(source, flag)
        if adapter is not None:
            config = model_files.read_json(directory, model_files.CONFIG)
            architecture, _ = recognise(directory, config)
            tensors = model_files.Tensors(directory) if tensors is None else tensors
            tensors = peft_adapter.AdaptedTensors(tensors, adapter, architecture)
            changes = adapter.config_changes(config, architecture)
        yield published.read(directory, ignore_keys, tensors, changes)


def _recorded_base(adapter: peft_adapter.Adapter) -> str:
    """The base that the adapter's config names, if it is here."""
    if adapter.base and Path(adapter.base, model_files.CONFIG).is_file():
        return adapter.base
    named = f"; its config names {adapter.base}" if adapter.base else ""
    raise ConfigError(
        f"--from={adapter.directory} is an adapter (LoRA) for another model: give that model's "
        f"directory with --base=DIR{named}"
    )
