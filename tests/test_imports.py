"""Which directory may import which, by the import statements."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Besides the standard library and itself, a directory may import these and nothing else.
ALLOWED = {
    "configs": {"ml_collections"},
    "experiment": {
        "configs", "input_pipeline", "model", "storage", "training", "absl", "ml_collections",
    },
    "input_pipeline": {
        "experiment", "storage", "numpy", "grain", "tensorflow_datasets", "datasets", "tokenizers",
        "babel", "sklearn", "absl", "PIL", "tqdm", "apache_beam", "jinja2",
    },
    "model": {"experiment", "jax", "flax", "numpy", "qwix"},
    "training": {
        "experiment", "storage", "model", "checkpointing", "evaluation", "input_pipeline", "jax",
        "flax", "numpy", "optax", "tensorboardX", "tqdm", "wandb",
    },
    "storage": {"experiment", "etils", "fsspec", "huggingface_hub", "orbax"},
    "checkpointing": {
        "experiment", "storage", "configs", "input_pipeline", "model", "pretrained", "training",
        "absl", "jax", "flax", "numpy", "orbax",
    },
    "evaluation": {
        "experiment", "model", "training", "inference", "input_pipeline", "flax", "jax",
        "numpy", "sacrebleu", "tqdm", "sklearn", "scipy", "lm_eval",
    },
    "inference": {
        "experiment", "storage", "input_pipeline", "model", "training", "checkpointing", "absl",
        "jax", "flax", "numpy", "tqdm",
    },
    # storage.hub has the addresses of models on the hub, which its errors name.
    "pretrained": {"experiment", "storage", "model", "numpy", "safetensors", "gguf"},
    "planning": {"experiment", "model", "training", "jax", "numpy"},
    # It stands on top of all others; only sweeps import it.
    "visualization": {
        "experiment", "storage", "model", "input_pipeline", "training", "evaluation", "inference",
        "checkpointing", "jax", "flax", "numpy", "matplotlib", "plotly", "PIL", "absl",
    },
    # It starts train.py as a process and reads what runs have written. Nothing imports it.
    "sweeps": {
        "experiment", "configs", "model", "input_pipeline", "training", "evaluation",
        "checkpointing", "visualization", "jax", "flax", "numpy", "scipy", "matplotlib", "tqdm",
    },
    "studies": set(),  # plain data
}  # fmt: skip

# What a directory may import of another, where that is less than all of it.
PARTS = {
    ("input_pipeline", "experiment"): {"experiment.schema", "experiment.untrusted_files"},
    ("storage", "experiment"): {"experiment.schema"},
    ("model", "experiment"): {"experiment.schema"},
    ("pretrained", "experiment"): {"experiment.schema", "experiment.untrusted_files"},
    ("pretrained", "storage"): {"storage.hub"},
    ("planning", "experiment"): {"experiment.schema"},
    ("training", "input_pipeline"): {
        "input_pipeline.objectives",
        "input_pipeline.pipeline",
        "input_pipeline.tokenizers",
    },
    ("evaluation", "input_pipeline"): {
        "input_pipeline.pipeline",
        "input_pipeline.rows",
        "input_pipeline.sources.base",
        "input_pipeline.tokenizers",
    },
    ("checkpointing", "pretrained"): {
        "pretrained.gguf_model",
        "pretrained.peft_adapter",
        "pretrained.model_files",  # of the export that a model card describes
        "pretrained.hub_model",  # a run may start from an address
        "pretrained.sentence",
        "pretrained.source_path",
        "pretrained.special_tokens_record",
    },
    ("checkpointing", "input_pipeline"): {
        "input_pipeline.object_copy",  # a conversion may read from a bucket
        "input_pipeline.token_cache",
        "input_pipeline.config",
        "input_pipeline.pipeline",
        "input_pipeline.tokenizers",
    },
}
# Files that may import more than their directory.
MEETING_PLACES = {
    "pretrained/hub_model.py": {"input_pipeline"},  # which knows the files of tokenizers
    "pretrained/published_tokenizer.py": {"input_pipeline", "training", "absl"},
    "pretrained/special_tokens_record.py": {"input_pipeline"},
    "pretrained/gguf_model.py": {"input_pipeline"},
}

# Inside model/, a file may import those before its own line.
MODEL_ORDER = [
    {"masks", "positions", "sharding", "dropout", "token_dropout", "interpolation"},
    {"mixed_precision", "dot_attention", "block_visibility", "mixer"},
    {"quantization", "banded", "blockwise", "fused", "recurrence", "conv", "mean"},
    {"ring", "rnn", "gru", "lstm"},
    {"flash_attention", "mixers"},  # mixers: the table, in model/mixers/__init__.py
    {"interface"},
    {"attention_weights"},
    {"dot", "flash", "local", "longformer", "linear", "hierarchical", "recurrent", "additive"},
    {"chunked", "performer"},
    {"attention"},  # the table of all kinds, in model/attention/__init__.py
    {"mixer_checks", "block_checks"},
    {"config_checks"},
    {"config"},
    {"layers", "routing", "relative_bias"},
    {"module", "token_mixer", "context_vector", "experts"},
    {"kv_cache", "block"},
    {"stack"},
    {"transformer"},
    {"heads"},
]


def files(directory: str) -> list[Path]:
    path = ROOT / directory
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The dotted names of all modules that a file imports, at any depth of its code."""
    names = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []  # of no concern when the code runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            # `from model import config` imports model.config; of other names this is harmless.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("directory", [directory for directory in ALLOWED if files(directory)])
def test_a_directory_imports_only_what_it_may(directory):
    for path in files(directory):
        strangers = {top(name) for name in imported(path)} - ALLOWED[directory] - {directory}
        strangers -= sys.stdlib_module_names
        strangers -= MEETING_PLACES.get(str(path.relative_to(ROOT)), set())
        assert not strangers, f"{path.relative_to(ROOT)} may not import {sorted(strangers)}"


@pytest.mark.parametrize(("directory", "other"), PARTS)
def test_a_directory_imports_only_parts_of_another(directory, other):
    for path in files(directory):
        used = {name for name in imported(path) if top(name) == other}
        allowed = PARTS[directory, other]
        beyond = {name for name in used if not name.startswith(tuple(f"{a}." for a in allowed))}
        beyond -= allowed
        if str(path.relative_to(ROOT)) not in MEETING_PLACES:
            assert not beyond, f"{path.relative_to(ROOT)} may not import {sorted(beyond)}"


def test_every_directory_has_a_rule():
    directories = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert directories - set(ALLOWED) <= {"tests", "benchmarks"}


def test_model_modules_import_only_lower_levels():
    level = {name: number for number, names in enumerate(MODEL_ORDER) for name in names}
    paths = [path for path in files("model") if path != ROOT / "model" / "__init__.py"]
    modules = {path.parent.stem if path.stem == "__init__" else path.stem: path for path in paths}
    assert set(modules) == set(level)
    for module, path in modules.items():
        own = [name.split(".")[1:] for name in imported(path) if top(name) == "model"]
        # The deepest part that is a module: `from model.attention import dot` is one of dot.
        uses = {[part for part in parts if part in level][-1] for parts in own}
        later = {name for name in uses if level[name] >= level[module]}
        assert not later, f"model/{path.name} may not import {sorted(later)}"


@pytest.mark.parametrize(
    "module",
    [
        "model/config", "model/masks", "model/positions", "model/sharding", "inference/decoding",
        "inference/beam_search", "inference/speculative_decoding",
    ],
)  # fmt: skip
def test_pure_functions_do_not_import_flax(module):
    assert "flax" not in {top(name) for name in imported(ROOT / f"{module}.py")}
