"""Reads the files of a published model, which are not trusted, and writes such files.

It never runs code from a file. Weights must be safetensors, whose library checks the header. No
name in a file may lead out of the model's directory. Tensors are written one at a time.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from experiment.schema import ConfigError
from experiment.untrusted_files import LARGEST_JSON, parse_json, read_text, require_regular
from pretrained.layouts import Index

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT_FILES = (WEIGHTS, INDEX)
_TAKE = "take the safetensors of the same repository"
_PICKLE = (
    "a pickle, which is never opened, because loading it can run any program; take the "
    "repository's safetensors. If it has none, load the model with transformers in a safe place, "
    "such as a container, and write it with save_pretrained, which makes safetensors"
)
# Ending of a file in another format -> what it is, and what to do.
FORMATS = {
    ".gguf": "a file of llama.cpp; give the file itself: --from=FILE.gguf",
    **dict.fromkeys((".bin", ".pt", ".pth", ".ckpt", ".pkl", ".ot"), _PICKLE),
    ".h5": f"a file of TensorFlow weights, which are not supported; {_TAKE}",
    ".msgpack": f"a file of Flax weights, which are not supported; {_TAKE}",
    ".npz": f"a file of NumPy arrays, which are not supported; {_TAKE}",
    ".onnx": f"an exported graph, which is not supported; {_TAKE}",
}
FLOATS = ("F64", "F32", "F16", "BF16")
NAMES_OF_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SAME_MODEL = "get all files of one model"  # the remedy for files that contradict each other
SHARD_BYTES = 5 * 10**9  # the most bytes of one file of weights, as on the hub


def read_json(directory: Path, name: str, kind: type = dict) -> Any:
    """Reads a JSON file of this directory; `kind` is dict for an object, or list."""
    path = inside(directory, name)
    try:
        content = parse_json(read_text(path, LARGEST_JSON))
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} has no {name}; give a published model's directory"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as JSON ({_one_line(error)}); download it again"
        ) from error
    if not isinstance(content, kind):
        raise ConfigError(
            f"{path} is not a JSON {'object' if kind is dict else 'list'}; download it again"
        )
    return content


def inside(directory: Path, name: str) -> Path:
    """The path of a file in this directory; refuses names and links that lead out of it."""
    if "\0" in name or not name.isprintable():
        raise ConfigError(f"{directory}: {name!r} is not a file name; download the model again")
    path = directory / name
    roots = [directory.resolve()]
    # Files in the hub's cache are links to the blobs of the repository, or of all repositories.
    for parent in roots[0].parents:
        if parent.name == "snapshots":
            roots += [parent.parent / "blobs", parent.parent.parent / "blobs"]
            break
    is_plain = Path(name).name == name and name not in ("", ".", "..")
    if not is_plain or not any(path.resolve().is_relative_to(root) for root in roots):
        raise ConfigError(
            f"{directory}: {name!r} leads out of the directory; only files in it are read"
        )
    return path


class TensorSource(Protocol):
    """Weights by the names of the hub, wherever they are stored."""

    shapes: Mapping[str, tuple[int, ...]]

    def require_float(self, name: str) -> None:
        """Refuses a tensor that is not of a float type."""

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor; `index` is one slice per axis."""


def weight_map(directory: Path) -> dict[str, str]:
    """The file of each tensor, from the index of the weights."""
    where = read_json(directory, INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
        raise ConfigError(
            f"{directory / INDEX} has no weight_map of names to files; download it again"
        )
    return where


def shards(directory: Path) -> list[str]:
    """The names of the files with the weights, from their index."""
    found = sorted(set(weight_map(directory).values()))
    for file in found:
        if not file.endswith(".safetensors"):
            raise ConfigError(f"{directory / INDEX} names {file!r}: {_why_not(file)}")
    return found


class Tensors:
    """The weights in a directory: shapes of the tensors, and reading of their parts."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._files: dict[str, Any] = {}  # by tensor name
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        if (directory / WEIGHTS).exists():
            self._open(WEIGHTS)
        elif (directory / INDEX).exists():
            self._open_shards()
        else:
            raise ConfigError(_no_weights(directory))

    def _open_shards(self) -> None:
        where = weight_map(self._directory)
        for file in shards(self._directory):
            self._open(file)
        for name in where.keys() - self.shapes.keys():
            raise ConfigError(
                f"{self._directory / where[name]} lacks {name}, which {INDEX} lists; {SAME_MODEL}"
            )
        for name in self.shapes.keys() - where.keys():
            raise ConfigError(
                f"{self._directory}: {name} is in a file, but not in {INDEX}; {SAME_MODEL}"
            )

    def _open(self, name: str) -> None:
        path = require_regular(inside(self._directory, name))
        try:
            file = safe_open(path, framework="np")
            found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a valid safetensors file ({_one_line(error)}); download it again"
            ) from error
        for key, part in found.items():
            if key in self.shapes:
                raise ConfigError(f"{self._directory}: {key} is in two files; {SAME_MODEL}")
            self._files[key] = file
            self.shapes[key] = tuple(part.get_shape())
            self._types[key] = part.get_dtype()

    def require_float(self, name: str) -> None:
        """Refuses a tensor of another type, such as quantised weights."""
        if self._types[name] not in FLOATS:
            raise ConfigError(
                f"{self._directory}: {name} has the type {self._types[name]}; quantised weights "
                f"are not supported, only {', '.join(FLOATS)}"
            )

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor, copied from the memory-mapped file; `index` is one slice per axis."""
        return self._files[name].get_slice(name)[index]


def _no_weights(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} is not a directory; give the directory of a published model"
    return f"{directory} {no_weights(path.name for path in directory.iterdir())}"


def no_weights(names: Iterable[str]) -> str:
    """The rest of a message on a model with these files, none of which has usable weights."""
    others = sorted(name for name in names if Path(name).suffix in FORMATS)
    if others:
        return f"has no {WEIGHTS}, but {others[0]}: {_why_not(others[0])}"
    return f"has neither {WEIGHTS} nor {INDEX}; give a published model's directory"


def _why_not(file: str) -> str:
    return FORMATS.get(Path(file).suffix, "only safetensors are supported")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, indented, in UTF-8."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    tensors: Iterator[tuple[str, np.ndarray]],
    shard_bytes: int = SHARD_BYTES,
    *,
    file: str = WEIGHTS,
) -> None:
    """Writes tensors to one safetensors file, `file`, or to several with an index.

    `tensors` yields (name, array) in the order of `shapes`, so only one is in memory at a time.
    """
    itemsize = 8 if dtype == "float64" else 4 if dtype == "float32" else 2
    sizes = {name: int(np.prod(shape)) * itemsize for name, shape in shapes.items()}
    shards: list[list[str]] = [[]]
    for name, size in sizes.items():
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + size > shard_bytes:
            shards.append([])
        shards[-1].append(name)
    files = [file]
    if len(shards) > 1:
        files = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
        weight_map = {
            name: part for part, names in zip(files, shards, strict=True) for name in names
        }
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_json(directory / INDEX, index)
    for part, names in zip(files, shards, strict=True):
        _write_file(directory / part, {name: shapes[name] for name in names}, sizes, dtype, tensors)


def _write_file(path: Path, shapes, sizes, dtype: str, tensors) -> None:
    # Written by hand: the safetensors library needs all tensors in memory at once.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        header[name] = {
            "dtype": NAMES_OF_TYPES[dtype],
            "shape": list(shape),
            "data_offsets": [start, start + sizes[name]],
        }
        start += sizes[name]
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format wants the data aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in shapes:
            next_name, tensor = next(tensors)
            assert next_name == name and tensor.shape == shapes[name], (next_name, name)
            file.write(np.ascontiguousarray(tensor).tobytes())
