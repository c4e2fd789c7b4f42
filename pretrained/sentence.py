"""Sentence embeddings: reads and writes the pooling settings of sentence-transformers."""

from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from pretrained import model_files

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# Settings of the module Transformer; the name depends on the kind of model.
LENGTHS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TOKENIZER = "tokenizer_config.json"
NO_LIMIT = 10**9  # for no limit, transformers writes a larger number, of thirty digits
KINDS = ("Transformer", "Pooling", "Normalize")
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
NEWER_MODES = {"mean": "mean", "cls": "first"}  # values of pooling_mode, since version 5


def max_length(directory: Path) -> int | None:
    """The maximum length of a text in tokens, including special tokens; None: no limit."""
    for name in LENGTHS:
        if (directory / name).exists():
            config = model_files.read_json(directory, name)
            value = config.get("max_seq_length")
            if value is not None and not (type(value) is int and value > 0):
                raise ConfigError(
                    f"{directory / name}: max_seq_length={value!r} must be a positive number"
                )
            if config.get("do_lower_case"):
                raise ConfigError(
                    f"{directory / name}: do_lower_case=true is not supported; set it to false "
                    "if the tokenizer lower-cases by itself"
                )
            if value is not None:
                return value
    # Newer versions write the limit to the tokenizer's settings.
    if (directory / MODULES).exists() and (directory / TOKENIZER).exists():
        value = model_files.read_json(directory, TOKENIZER).get("model_max_length")
        if isinstance(value, int | float) and 0 < value < NO_LIMIT:
            return int(value)
    return None


def read_prompts(directory: Path) -> dict[str, str]:
    """Texts that users put before theirs, by name; refuses one that the pipeline puts there."""
    if not ((directory / MODULES).exists() and (directory / SETTINGS).exists()):
        return {}
    settings = model_files.read_json(directory, SETTINGS)
    prompts = settings.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    default = settings.get("default_prompt_name")
    if default is not None and prompts.get(default, default):
        raise ConfigError(
            f"{directory / SETTINGS}: default_prompt_name={default!r} puts "
            f"{prompts.get(default, 'a prompt')!r} before every text, which is not supported; set "
            "it to null there, and write the prompt before your texts"
        )
    return {name: text for name, text in prompts.items() if text}


def read(directory: Path) -> dict[str, Any]:
    """Keys of our `task` section that say how hidden states become an embedding."""
    if not (directory / MODULES).exists():
        return dict(embedding="pooled", normalize=False)
    kinds = []
    for module in model_files.read_json(directory, MODULES, list):
        described = module if isinstance(module, dict) else {}
        kind = str(described.get("type", "")).rpartition(".")[2]
        if kind not in KINDS:
            raise ConfigError(
                f"{directory / MODULES}: {module!r} is not supported; "
                f"supported are: {', '.join(KINDS)}"
            )
        kinds.append((kind, str(described.get("path", ""))))
    names = [kind for kind, _ in kinds]
    if names not in (["Transformer", "Pooling"], list(KINDS)):
        raise ConfigError(
            f"{directory / MODULES}: {', '.join(names)} is not supported; only {', '.join(KINDS)} "
            f"in this order, or without {KINDS[-1]}"
        )
    path = kinds[1][1]
    config = model_files.read_json(model_files.inside(directory, path), model_files.CONFIG)
    modes = [mode for mode, on in config.items() if mode.startswith("pooling_mode_") and on is True]
    known, given = MODES, ", ".join(modes) or "no pooling mode"
    if newer := config.get("pooling_mode"):
        known = NEWER_MODES
        modes = list(map(str, newer if isinstance(newer, list) else [newer]))
        given = f"pooling_mode={'+'.join(modes)}"
    if len(modes) != 1 or modes[0] not in known:
        raise ConfigError(
            f"{directory / path / model_files.CONFIG}: {given} is not supported; "
            f"one of these is, alone: {', '.join(known)}"
        )
    return dict(embedding=known[modes[0]], normalize="Normalize" in names)


def write(directory: Path, width: int, embedding: str, length: int, *, normalize: bool) -> None:
    """Writes the files of sentence-transformers; writes nothing for a plain base model."""
    if embedding == "pooled":
        return
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(paths.items())
        if normalize or kind != "Normalize"
    ]
    model_files.write_json(directory / MODULES, modules)
    model_files.write_json(directory / SETTINGS, {})
    model_files.write_json(
        directory / LENGTHS[0], {"max_seq_length": length, "do_lower_case": False}
    )
    (directory / paths["Pooling"]).mkdir()
    modes = {mode: ours == embedding for mode, ours in MODES.items()}
    content = {"word_embedding_dimension": width, **modes}
    model_files.write_json(directory / paths["Pooling"] / model_files.CONFIG, content)
