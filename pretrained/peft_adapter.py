"""LoRA adapters in the format of the package peft.

An adapter is adapter_config.json with adapter_model.safetensors. It comes in on top of its base:
what is read of an adapted tensor is W + scale * B A. A run of finetune.lora_rank goes out with the
matrices of each adapted layer, and with the layers that it trains in full (modules_to_save).
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from experiment.schema import ConfigError
from pretrained import model_files
from pretrained.architecture import Architecture
from pretrained.layouts import (
    BLOCKS,
    EXPERTS,
    LAYER,
    At,
    Index,
    ModuleTable,
    layout,
    places,
    their_shapes,
    to_theirs,
)

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
OUR_A, OUR_B = "/lora_a", "/lora_b"
# Keys that are read here, that only say where adapters are, or that only training uses.
KNOWN = {
    "peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "alpha_pattern",
    "rank_pattern", "use_rslora", "fan_in_fan_out", "bias", "modules_to_save", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "inference_mode",
    "peft_version", "revision", "auto_mapping", "megatron_core", "qalora_group_size",
    "runtime_config", "ensure_weight_tying",
}  # fmt: skip
# How adapters begin, where the base's weights stay as they are.
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")
# Ends of the classes of heads, by task_type.
HEADS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
CLASSES = re.compile(r"(score|classifier|classifier\.out_proj)\.weight")  # a row per class
TASK_TYPES = {  # by the head of an objective
    "language_model": "CAUSAL_LM",
    "classifier": "SEQ_CLS",
    "regressor": "SEQ_CLS",
    "token_classifier": "TOKEN_CLS",
    "embedder": "FEATURE_EXTRACTION",
}


@dataclasses.dataclass(frozen=True)
class Delta:
    """What an adapter adds to a tensor: scale * B A, or its transpose."""

    a: np.ndarray  # (rank, inputs)
    b: np.ndarray  # (outputs, rank)
    scale: float
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the tensor that it is added to."""
        shape = self.b.shape[0], self.a.shape[1]
        return shape[::-1] if self.transposed else shape

    def part(self, index: Index) -> np.ndarray:
        """The part at `index`, one slice per axis or fewer."""
        rows, columns = (*index, slice(None), slice(None))[:2]
        if self.transposed:
            return self.scale * (self.b[columns] @ self.a[:, rows]).T
        return self.scale * (self.b[rows] @ self.a[:, columns])


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter as its files have it, by the names of modules in transformers."""

    directory: Path
    base: str  # what the config says of its base; "" if nothing
    task_type: str
    deltas: Mapping[str, Delta]  # by module
    saved: Mapping[str, np.ndarray]  # tensors that replace those of the base, by name

    def config_changes(self, config: Mapping[str, Any], architecture: Architecture) -> dict:
        """Keys of the base's config.json that a head of the adapter changes."""
        end = HEADS.get(self.task_type)
        if end is None:
            return {}
        classes = [name for name in architecture.heads if name.endswith(end)]
        if not classes:
            raise ConfigError(
                f"{self.directory / CONFIG}: task_type={self.task_type!r} is not supported for "
                f"model_type={architecture.model_type}"
            )
        labels = config.get("id2label") or {}
        heads = [tensor for name, tensor in self.saved.items() if CLASSES.fullmatch(name)]
        count = len(heads[0]) if heads else len(labels)
        changes = dict(architectures=classes[:1])
        return changes if count == len(labels) else changes | dict(id2label=None, num_labels=count)


def is_adapter(source: str | Path) -> bool:
    """Whether a directory has an adapter, and no complete model."""
    return Path(source, CONFIG).is_file() and not Path(source, model_files.CONFIG).exists()


def read(directory: Path) -> Adapter:
    """Reads an adapter; refuses other kinds than LoRA, and options that change what it adds."""
    path = directory / CONFIG
    config = model_files.read_json(directory, CONFIG)

    def refuse(key: str, why: str):
        raise ConfigError(f"{path}: {key}={config.get(key)!r} is not supported; {why}")

    if config.get("peft_type") != "LORA":
        refuse("peft_type", "only LORA is; merge it into its base with peft's merge_and_unload")
    if config.get("init_lora_weights", True) not in PLAIN_STARTS:
        refuse("init_lora_weights", "it changes the base; merge it with peft's merge_and_unload")
    if config.get("bias", "none") != "none":
        refuse("bias", "only 'none' is; merge it with peft's merge_and_unload")
    ignored = KNOWN | {"init_lora_weights"}
    for key in sorted(key for key, value in config.items() if value and key not in ignored):
        refuse(key, "it may change what the adapter adds; merge it with peft's merge_and_unload")
    tensors = _read_tensors(directory)
    deltas, saved = {}, {}
    for name, tensor in tensors.items():
        short = name.removeprefix(PREFIX)
        if name == short or "lora_embedding" in name:
            raise ConfigError(
                f"{directory / WEIGHTS}: {name} is not known; {model_files.SAME_MODEL}"
            )
        if short.endswith(LORA_A):
            module = short.removesuffix(LORA_A)
            other = tensors.get(f"{PREFIX}{module}{LORA_B}")
            if other is None or tensor.ndim != 2 or other.shape[1:] != tensor.shape[:1]:
                raise ConfigError(
                    f"{directory / WEIGHTS}: {name} has no lora_B that fits; "
                    f"{model_files.SAME_MODEL}"
                )
            deltas[module] = Delta(
                tensor, other, _scale(config, module, len(tensor), refuse),
                bool(config.get("fan_in_fan_out")),
            )  # fmt: skip
        elif not short.endswith(LORA_B):
            saved[short] = tensor
    if not deltas:
        raise ConfigError(f"{directory / WEIGHTS} has no adapter; {model_files.SAME_MODEL}")
    task = str(config.get("task_type") or "")
    return Adapter(directory, str(config.get("base_model_name_or_path") or ""), task, deltas, saved)


def _scale(config: Mapping[str, Any], module: str, rank: int, refuse) -> float:
    """The factor on B A; a pattern of peft is a regular expression for the end of a name."""
    alpha, patterns = config.get("lora_alpha", 8), config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        refuse("alpha_pattern", "it must be an object")
    for pattern, value in patterns.items():
        # Not trusted: only names with full stops are read, not any expression.
        if module == pattern or module.endswith(f".{pattern}"):
            alpha = value
            break
        if not re.fullmatch(r"[\w.]+", pattern):
            refuse("alpha_pattern", f"{pattern!r} is not the name of a module")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        refuse("lora_alpha", "it must be a number")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read_tensors(directory: Path) -> dict[str, np.ndarray]:
    path = model_files.inside(directory, WEIGHTS)
    if not path.is_file():
        has = (
            f", but {PICKLE}: {model_files.FORMATS['.bin']}"
            if (directory / PICKLE).exists()
            else ""
        )
        raise ConfigError(f"{directory} has no {WEIGHTS}{has}; {model_files.SAME_MODEL}")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a valid safetensors file ({' '.join(str(error).split())}); download "
            "it again"
        ) from error
    for name, tensor in tensors.items():
        if tensor.dtype.name not in model_files.NAMES_OF_TYPES:
            raise ConfigError(f"{path}: {name} has the type {tensor.dtype}; only floats are read")
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


class AdaptedTensors:
    """The weights of a base with an adapter on top."""

    def __init__(
        self, base: model_files.TensorSource, adapter: Adapter, architecture: Architecture
    ):
        self._base, self._deltas, self._saved = base, {}, {}
        self.shapes = dict(base.shapes)
        for module, delta in adapter.deltas.items():
            name = f"{module}.weight"
            known = _known(name, architecture, base.shapes)
            if known is None or base.shapes[known] != delta.shape:
                shape = "no such tensor" if known is None else f"shape {list(base.shapes[known])}"
                raise ConfigError(
                    f"{adapter.directory} adapts {name} of shape {list(delta.shape)}, but the base "
                    f"has {shape}; give the base that it was trained on: --base=DIR"
                )
            self._deltas[known] = delta
        for name, tensor in adapter.saved.items():
            known = _known(name, architecture, base.shapes) or name
            self._saved[known] = tensor
            self.shapes[known] = tensor.shape

    def require_float(self, name: str) -> None:
        """Refuses a tensor that is not of a float type."""
        if name not in self._saved:
            self._base.require_float(name)

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor, with what the adapter adds, in float32."""
        if name in self._saved:
            return self._saved[name][index]
        values = self._base.read(name, index)
        if name not in self._deltas:
            return values
        return values.astype(np.float32) + self._deltas[name].part(index)


def _known(name: str, architecture: Architecture, shapes: Mapping[str, Any]) -> str | None:
    """The base's name of a tensor; files of a base model lack the prefix of one with a head."""
    names = (name, name.removeprefix(architecture.base), architecture.base + name)
    return next((each for each in names if each in shapes), None)


# Out


def task_type(head: str, *, has_source: bool) -> str | None:
    """The task_type of an objective's head; None if peft has no name for it."""
    return "SEQ_2_SEQ_LM" if has_source else TASK_TYPES.get(head)


def write(
    directory: Path,
    table: ModuleTable,
    own: Mapping[str, np.ndarray],
    params: Mapping[str, np.ndarray],
    alpha: float,
    kind: str | None,
) -> list[str]:
    """Writes a run's adapters; returns the modules of transformers that are adapted.

    own: the run's own parameters by path: adapters, and what it trains in full. params: all of the
    merged model. kind: the task_type.
    """
    matrices = _matrices(table, own)
    full = [path for path in own if not path.endswith((OUR_A, OUR_B))]
    saved, tensors = _full_modules(table, full, params)
    for module, parts in matrices.items():
        tensors[f"{module}{LORA_A}"] = np.concatenate([a for a, _ in parts], axis=0)
        tensors[f"{module}{LORA_B}"] = np.concatenate([b for _, b in parts], axis=1)
    tensors = {f"{PREFIX}{name}": tensors[name] for name in sorted(tensors)}
    rank = len(next(iter(matrices.values()))[0][0])
    counts = {module: len(parts) for module, parts in matrices.items()}
    common = max(counts.values(), key=list(counts.values()).count)
    others = {module: count for module, count in counts.items() if count != common}
    at = [table[path.removesuffix(OUR_A)] for path in own if path.endswith(OUR_A)]
    config = dict(
        peft_type="LORA",
        task_type=kind,
        base_model_name_or_path=None,
        r=rank * common,
        lora_alpha=alpha * common,
        rank_pattern={module: rank * count for module, count in others.items()},
        alpha_pattern={module: alpha * count for module, count in others.items()},
        target_modules=_targets(matrices, table, params),
        modules_to_save=saved or None,
        fan_in_fan_out=any(isinstance(each, At) and each.untransposed for each in at),
        lora_dropout=0.0,
        bias="none",
        inference_mode=True,
    )
    model_files.write_json(directory / CONFIG, config)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    model_files.write_tensors(directory, shapes, "float32", iter(tensors.items()), file=WEIGHTS)
    return sorted(matrices)


def _matrices(table: ModuleTable, own: Mapping[str, np.ndarray]) -> dict[str, list[tuple]]:
    """(A, B) by module of transformers; several of ours may be parts of one of theirs.

    A has the shape (rank, inputs), B (outputs, rank) with zeros for outputs of the other parts.
    """
    found: dict[str, list[tuple]] = {}
    for path, a in own.items():
        if not path.endswith(OUR_A):
            continue
        stem = path.removesuffix(OUR_A)
        at = table[stem]
        at = At(at) if isinstance(at, str) else at
        if at.is_tensor or EXPERTS in stem.split("/") or BLOCKS not in stem.split("/"):
            raise ConfigError(
                f"the adapter of {stem} has no place in the format of peft; train one with other "
                "finetune.lora_targets, or export the merged model without --adapter"
            )
        b = own[stem + OUR_B]
        rank = a.shape[-1]
        # B maps the rank to the outputs as a kernel maps inputs to outputs.
        where = layout(dataclasses.replace(at, untransposed=False), "b/kernel", b.shape[1:])
        for layer in range(at.from_layer, len(a)):
            matrix = np.zeros(where.their_shape, np.float32)
            where.place(np.asarray(b[layer], np.float32), matrix)
            pair = np.asarray(a[layer], np.float32).reshape(-1, rank).T, matrix
            found.setdefault(at.name.replace(LAYER, str(layer)), []).append(pair)
    return found


def _full_modules(
    table: ModuleTable, full: Sequence[str], params: Mapping[str, np.ndarray]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Modules that have parameters in `full`, and all their tensors by name."""
    found = list(places({path: leaf.shape for path, leaf in params.items()}, table))
    modules = {p.name.rpartition(".")[0] for p in found if p.path in full and p.name}
    chosen = [place for place in found if place.name.rpartition(".")[0] in modules and place.name]
    names = their_shapes(chosen)
    parts = [place for place in found if place.name in names]
    return sorted(modules), dict(to_theirs(parts, params))


def _targets(
    adapted: Mapping[str, Any], table: ModuleTable, params: Mapping[str, np.ndarray]
) -> list[str]:
    """What peft is to adapt: the last words of the names if no other layer has them, else all."""
    kernels = {path: leaf.shape for path, leaf in params.items() if path.endswith("/kernel")}
    modules = {place.name.rpartition(".")[0] for place in places(kernels, table) if place.name}
    words = {module.rpartition(".")[2] for module in adapted}
    if any(each.rpartition(".")[2] in words for each in modules - adapted.keys()):
        return sorted(adapted)
    return sorted(words)
