"""Reads a GGUF file as the published model that it was made from.

    with as_published(path, ...) as found:      found.directory has config.json and the tokenizer
        published.read(found.directory, found.ignore_keys, found.tensors)

Weights stay in the GGUF file until a part of them is read. Errors name the file.
"""

import contextlib
import dataclasses
import math
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.tokenizers import gguf_vocabulary
from pretrained import model_files
from pretrained.catalog import ARCHITECTURES
from pretrained.gguf_file import SUFFIX, GgufFile, RenamedTensors, listed, open_gguf


@dataclasses.dataclass(frozen=True)
class GgufArchitecture:
    """How GGUF stores an architecture of the hub."""

    class_name: str  # of transformers
    config: Mapping[str, Any]  # keys of config.json that the metadata does not have
    interleaved: bool = False  # rows of queries and keys are permuted for another form of RoPE


ARCHITECTURE = "general.architecture"
# By general.architecture, which is also the model_type.
READABLE = {
    "llama": GgufArchitecture("LlamaForCausalLM", {}, interleaved=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", {}),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", {}),
}
# Key of config.json -> key in the metadata, after the architecture's name.
SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
# Keys that say nothing that the model computes, and keys with the values at which they do not.
HARMLESS = ("tensor_data_layout", "rope.scaling.finetuned")
NEUTRAL = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True}
TOKEN_IDS = dict(bos="bos", eos="eos", unknown="unk", padding="pad")
MORE_ENDS = ("eot", "eom")  # further ids that end an answer
EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
# Modules of the hub by those of GGUF: outside of the blocks, and in a block.
MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
TAKE_SAFETENSORS = "take the safetensors of the repository that it was made from"


@dataclasses.dataclass(frozen=True)
class GgufModel:
    """What `published.read` needs."""

    directory: Path
    ignore_keys: list[str]
    tensors: RenamedTensors


def is_gguf(source: str) -> bool:
    """Whether --from names a GGUF file."""
    return Path(source).suffix == SUFFIX and Path(source).is_file()


@contextlib.contextmanager
def as_published(
    path: Path, ignore_keys: Collection[str], *, with_tokenizer: bool
) -> Iterator[GgufModel]:
    """Yields the model with a temporary directory; `with_tokenizer`: also its own tokenizer."""
    file = open_gguf(path)
    architecture = _architecture(file)
    ignored = [key for key in ignore_keys if key in file.metadata]
    config = _Metadata(file, ignored).config(architecture)
    names = {_hub_name(name): name for name in file.tensors if name != ROPE_FACTORS}
    interleaved = _interleaved(config, names) if architecture.interleaved else {}
    with tempfile.TemporaryDirectory() as temporary:
        # The name of the file is in log lines, too.
        directory = Path(temporary) / path.name
        directory.mkdir()
        model_files.write_json(directory / model_files.CONFIG, config)
        if more := _ends(file):
            model_files.write_json(directory / model_files.GENERATION, dict(eos_token_id=more))
        if with_tokenizer:
            gguf_vocabulary.write(file.metadata, directory, path)
        with _errors_name(path, directory):
            others = [key for key in ignore_keys if key not in ignored]
            yield GgufModel(directory, others, RenamedTensors(file, names, interleaved))


@contextlib.contextmanager
def _errors_name(path: Path, directory: Path) -> Iterator[None]:
    """Errors name the GGUF file instead of the temporary directory."""
    try:
        yield
    except ConfigError as error:
        ours = (str(directory / model_files.CONFIG), str(directory))
        problems = error.problems
        for each in ours:
            problems = [problem.replace(each, str(path)) for problem in problems]
        raise ConfigError(problems) from error


def _architecture(file: GgufFile) -> GgufArchitecture:
    """The architecture of the file; refuses files that are no whole model of a readable one."""
    kind, name = file.metadata.get("general.type", "model"), file.metadata.get(ARCHITECTURE)
    if kind != "model":
        raise ConfigError(f"{file.path}: general.type={kind!r} is no model; give a model's file")
    if file.metadata.get("split.count", 1) != 1:
        raise ConfigError(
            f"{file.path} is one of {file.metadata['split.count']} files of a model; merge them "
            "first: llama-gguf-split --merge FIRST.gguf MODEL.gguf"
        )
    if not isinstance(name, str) or name not in READABLE:
        remedy = TAKE_SAFETENSORS
        if name not in ARCHITECTURES:
            remedy += ", if convert.py supports them"
        raise ConfigError(
            f"{file.path}: {ARCHITECTURE}={name!r} is not read from GGUF, only "
            f"{', '.join(READABLE)}; {remedy}"
        )
    return READABLE[name]


class _Metadata:
    """The metadata of one architecture; records what was read, so that no key is overlooked."""

    def __init__(self, file: GgufFile, ignored: Collection[str]):
        self._file, self._ignored = file, ignored
        self._name = file.metadata[ARCHITECTURE]
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        full = f"{self._name}.{key}"
        self._read.add(full)
        if full in self._ignored:
            return default
        value = self._file.metadata.get(full, default)
        if isinstance(value, list):  # one number per layer
            if len(set(value)) != 1:
                self.refuse(key, value, "layers of different sizes are not supported")
            value = value[0]
        return _shortest(value) if isinstance(value, float) else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self._file.path} has no {self._name}.{key}; download it again")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.need(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(key, value, "it must be a positive number")
        return value

    def refuse(self, key: str, value: Any, why: str):
        raise ConfigError(f"{self._file.path}: {self._name}.{key}={value!r}: {why}")

    def config(self, architecture: GgufArchitecture) -> dict[str, Any]:
        """The config.json of the model."""
        if self.get("expert_count", 0):
            self.refuse(
                "expert_count", self.get("expert_count"),
                f"mixtures of experts are not read from GGUF; {TAKE_SAFETENSORS}",
            )  # fmt: skip
        config = dict(model_type=self._name, architectures=[architecture.class_name])
        config |= {theirs: self.size(key) for theirs, key in SIZES.items()}
        heads = config["num_attention_heads"]
        kv_heads = self.size("attention.head_count_kv", heads)
        size = self.size("attention.key_length", config["hidden_size"] // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if (value := self.get(key, size)) != size:
                self.refuse(key, value, f"it must be the size of a head of keys, {size}")
        config |= dict(
            num_key_value_heads=kv_heads,
            head_dim=size,
            rms_norm_eps=self.need("attention.layer_norm_rms_epsilon"),
            vocab_size=self.get("vocab_size", self._rows(EMBEDDING)),
            tie_word_embeddings=OUTPUT not in self._file.tensors,
            rope_parameters=self._rope(size),
            **architecture.config,
        )
        if self._name == "qwen2":
            if size * heads != config["hidden_size"]:
                self.refuse("attention.key_length", size, "Qwen 2 has heads of width / heads")
            del config["head_dim"]
        else:
            config |= dict(attention_bias="blk.0.attn_q.bias" in self._file.tensors)
        config |= self._token_ids()
        self._refuse_unread()
        return config

    def _rows(self, name: str) -> int:
        if name not in self._file.tensors:
            raise ConfigError(f"{self._file.path} has no tensor {name}; download it again")
        return self._file.tensors[name].shape[0]

    def _rope(self, size: int) -> dict[str, Any]:
        theta = self.get("rope.freq_base", 10_000.0)
        if not isinstance(theta, int | float) or not 0 < theta < math.inf:
            self.refuse("rope.freq_base", theta, "it must be a number above 0")
        kind = self.get("rope.scaling.type", "none")
        rope = dict(rope_theta=theta, rope_type="default")
        if ROPE_FACTORS in self._file.tensors:
            if kind != "none":
                self.refuse("rope.scaling.type", kind, f"the file also has {ROPE_FACTORS}")
            return rope | _llama3(self._file, theta, size)
        if kind == "none":
            return rope
        if kind not in ("linear", "yarn"):
            self.refuse("rope.scaling.type", kind, "supported are: none, linear, yarn")
        rope |= dict(rope_type=kind, factor=self.need("rope.scaling.factor"))
        length = self.get("rope.scaling.original_context_length")
        return rope if length is None else rope | dict(original_max_position_embeddings=length)

    def _token_ids(self) -> dict[str, int]:
        keys = {ours: f"tokenizer.ggml.{theirs}_token_id" for theirs, ours in TOKEN_IDS.items()}
        found = {ours: self._file.metadata.get(key) for ours, key in keys.items()}
        return {f"{role}_token_id": id for role, id in found.items() if id is not None}

    def _refuse_unread(self) -> None:
        """Refuses keys of the architecture that nothing has read."""
        keys = [key for key in self._file.metadata if key.startswith(f"{self._name}.")]
        harmless = {f"{self._name}.{key}" for key in HARMLESS}
        for key, value in NEUTRAL.items():
            if self.get(key, value) == value:
                harmless.add(f"{self._name}.{key}")
            else:
                self._read.discard(f"{self._name}.{key}")
        unread = [key for key in keys if key not in {*self._read, *harmless, *self._ignored}]
        if unread:
            raise ConfigError(
                f"{self._file.path}: {listed(unread)} may change what the model computes, and "
                "convert.py does not read it; if you know that it does not, give --ignore_keys="
                + ",".join(sorted(unread))
            )


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same in the file's 32 bits: 1e-05."""
    return float(str(np.float32(value)))


def _llama3(file: GgufFile, theta: float, size: int) -> dict[str, Any]:
    """Llama 3.1's scaling, of which GGUF only has the resulting factors."""
    factors = file.tensors[ROPE_FACTORS].rows(slice(None))
    factor = _shortest(float(factors.max(initial=1.0)))
    original = LLAMA3["original_max_position_embeddings"]
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    # The number of turns that each pair of columns makes in the original length.
    turns = original * theta ** (-np.arange(0, size, 2) / size) / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - share) / factor + share)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ConfigError(
            f"{file.path}: {ROPE_FACTORS} are not those of Llama 3.1 for a length of {original}, "
            f"which alone is read; {TAKE_SAFETENSORS}"
        )
    return dict(LLAMA3, rope_type="llama3", factor=factor)


def _ends(file: GgufFile) -> list[int]:
    """All ids that end an answer, if there are others than eos."""
    names = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", *MORE_ENDS)]
    ids = [file.metadata[name] for name in names if name in file.metadata]
    if not all(isinstance(id, int) for id in ids):
        raise ConfigError(f"{file.path}: {' or '.join(names)} is no id; download it again")
    ids = list(dict.fromkeys(ids))
    return ids if len(ids) > 1 else []


def _hub_name(name: str) -> str:
    """The hub's name of a tensor; an unknown one stays as it is, and is refused by its name."""
    module, _, leaf = name.rpartition(".")
    if module in MODULES:
        return f"{MODULES[module]}.{leaf}"
    if (found := re.fullmatch(r"blk\.(\d+)\.(\w+)", module)) and found[2] in IN_BLOCK:
        return f"model.layers.{found[1]}.{IN_BLOCK[found[2]]}.{leaf}"
    return name


def _interleaved(config: Mapping[str, Any], names: Collection[str]) -> dict[str, int]:
    """The heads of the tensors whose rows are permuted."""
    heads = {".q_proj.": "num_attention_heads", ".k_proj.": "num_key_value_heads"}
    return {name: config[key] for name in names for part, key in heads.items() if part in name}
