"""Who may import whom, read from the import statements themselves."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Beside the standard library and itself, a room may import these and nothing else.
ALLOWED = {
    "schema.py": set(),
    "configs": {"ml_collections"},
    "input_pipeline": {
        "schema", "numpy", "grain", "tensorflow_datasets", "datasets", "tokenizers", "babel",
        "sklearn", "absl", "PIL", "tqdm", "apache_beam",
    },
    "model": {"schema", "jax", "flax", "numpy", "qwix"},
    "training": {
        "schema", "model", "jax", "flax", "numpy", "optax", "orbax", "sacrebleu", "tensorboardX",
        "tqdm", "wandb",
    },
    "pretrained": {"schema", "model", "numpy", "safetensors"},
    "jobs": {
        "schema", "experiment", "configs", "input_pipeline", "model", "pretrained", "training",
        "absl", "jax", "flax", "numpy", "tqdm",
    },
    "planning": {"schema", "model", "training", "jax", "numpy"},
}  # fmt: skip

# Inside model/, a file may import those before its own line.
MODEL_ORDER = [
    {"kinds"},
    {"config"},
    {"masks", "positions", "sharding", "dropping"},
    {"mixed_precision"},
    {"quantization"},
    {"layers", "dot", "visibility"},
    {"banded", "blockwise", "fused", "linear"},
    {"ring"},
    {"flash", "performer"},
    {"longformer", "hierarchical"},
    {"attend"},
    {"attention"},
    {"cache"},
    {"transformer"},
    {"heads", "decoding", "decoding_params"},
    {"beam_search", "speculation"},
]


def files(room: str) -> list[Path]:
    path = ROOT / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The dotted names of all modules that a file imports, at any depth of its code."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            # `from model import config` imports model.config; of other names this is harmless.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("room", [room for room in ALLOWED if files(room)])
def test_a_room_imports_only_what_it_may(room):
    for path in files(room):
        strangers = {top(name) for name in imported(path)} - ALLOWED[room] - {room}
        strangers -= sys.stdlib_module_names
        assert not strangers, f"{path.relative_to(ROOT)} may not import {sorted(strangers)}"


def test_every_room_has_a_rule():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms - set(ALLOWED) <= {"tests", "benchmarks"}


def test_the_model_is_built_in_order():
    level = {name: number for number, names in enumerate(MODEL_ORDER) for name in names}
    modules = [path for path in files("model") if path.stem != "__init__"]
    assert {path.stem for path in modules} == set(level)
    for path in modules:
        own = {name for name in imported(path) if top(name) == "model"}
        uses = {name.replace("model.kernels.", "model.").split(".")[1] for name in own}
        later = {name for name in uses if level[name] >= level[path.stem]}
        assert not later, f"model/{path.name} may not import {sorted(later)}"


@pytest.mark.parametrize(
    "module", ["config", "masks", "positions", "sharding", "decoding", "beam_search", "speculation"]
)
def test_pure_functions_know_no_flax(module):
    assert "flax" not in {top(name) for name in imported(ROOT / "model" / f"{module}.py")}
