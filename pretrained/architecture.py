"""Architectures: tables that translate between a published config.json and our `model` section."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiment.schema import ConfigError
from model.config import TransformerConfig
from pretrained.layouts import ModuleTable
from pretrained.model_files import TensorSource

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclasses.dataclass(frozen=True)
class Head:
    """What a class of transformers predicts, as keys of our `task` section."""

    objective: str
    next_sentence: bool = False

    @property
    def reads_texts(self) -> bool:
        """Whether it predicts a class or a number for a text."""
        return self.objective in ("classify_text", "regress_text")

    @property
    def reads_tokens(self) -> bool:
        """Whether it predicts something for each token of a text, without pooling it."""
        return self.objective in ("classify_tokens", "answer_span")


@dataclasses.dataclass(frozen=True)
class Specials:
    """The special ids of a published config; None if the config has no such id."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    decoder_start: int | None = None
    more_eos: tuple[int, ...] = ()  # further ids that end an output, in chat models
    forced_bos: int | None = None  # the first token of an output, after decoder_start
    forced_eos: bool = False  # whether the last token of an output of maximum length is eos
    banned: tuple[int, ...] = ()  # ids that are never generated


# Keys of our `model` section that few architectures have, and their values in all others.
PLAIN = dict(
    sinusoidal_variant="paper", sinusoidal_offset=0, rope_local_theta=0.0,
    rope_fraction=1.0, rope_layers=(), embedding_multiplier=1.0,
    logit_multiplier=1.0, logit_cap=0.0, residual_multiplier=1.0, parallel_residual="none",
    norm_zero_centered=False, norm_bias=False, attention_multiplier=0.0,
    attention_bias="default", score_cap=0.0, attention_sinks=False, router_bias=False,
    rope_truncate=True, qk_norm="none", experts=0, shared_experts=0,
    router_scores="softmax", router_renormalise=True, expert_capacity=0.0,
    first_norm=True, pooler_norm=False, head_bias=True, class_bias=True, embedding_size=0,
    relative_bias=False, own_relative_bias=False, token_dropout=False, layer_scale=0.0,
    distillation="none", layer_groups=0, position_image_size=0,
)  # fmt: skip

Shapes = Mapping[str, tuple[int, ...]]
REQUIRED = None  # stands for a default: the key must be there


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How to read and write models of one `model_type`."""

    model_type: str
    heads: Mapping[str, Head]  # class of transformers -> head
    # Keys of our `model` section that have the same value in all models of this type.
    style: Mapping[str, Any]
    # Our key -> (their key, its default in transformers).
    keys: Mapping[str, tuple[str, Any]]
    # Their key -> the only supported value, which is also the default.
    required_values: Mapping[str, Any]
    # (model, head, special ids) -> the table from our modules to theirs.
    table: Callable[[TransformerConfig, Head, Specials], ModuleTable]
    # Keys that need more than renaming. read_more: (their config, the shapes of their tensors,
    # head) -> our keys. write_more: (our model, head, special ids) -> their keys, or MisfitError.
    read_more: Callable[["PublishedConfig", Shapes, Head], dict[str, Any]]
    write_more: Callable[[TransformerConfig, Head, Specials], dict[str, Any]]
    # (our keys so far, their tensors) -> keys of ours that the values of tensors decide.
    read_tensors: Callable[[Mapping[str, Any], TensorSource], dict[str, Any]] = (
        lambda ours, tensors: {}
    )
    # Keys of our `model` section that read_more and write_more handle. Of the keys in PLAIN, others
    # must have their value there.
    sets: frozenset[str] = frozenset()
    # Path of a parameter of ours -> the number of its rows to export.
    used_rows: Callable[[TransformerConfig], Mapping[str, int]] = lambda model: {}
    # Tensors of theirs that an export computes, because transformers expects them in the files.
    computed: Callable[[TransformerConfig], Mapping[str, np.ndarray]] = lambda model: {}
    base: str = ""  # prefix of tensor names in a model with a head; a base model has no prefix
    renames: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for names of other versions
    derived: tuple[str, ...] = ()  # patterns of tensors that code can compute: masks, sinusoids
    # Those of them that a file may have otherwise, as the code computes them: others are refused.
    derived_values: Callable[[TransformerConfig], Mapping[str, np.ndarray]] = lambda model: {}
    copies: tuple[tuple[str, str], ...] = ()  # (tied tensor, the tensor that it equals)
    zero_if_missing: tuple[str, ...] = ()  # tensors that are zeros if the files lack them
    # Modules of other heads, which files may contain.
    other_heads: tuple[str, ...] = ()
    # Other names that transformers accepts for their keys, such as hidden_size for n_embd.
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Keys that never change the result, and keys that do not change it at these values.
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    # Their key -> (value, pattern): at this value, tensors that match the pattern are missing and
    # stand for zeros.
    absent_at: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    # Whether its positions are interpolated for images of another size than config.json says.
    interpolates: bool = False
    generates: bool = False  # whether generate.py can write text with it

    @property
    def required_style(self) -> dict[str, Any]:
        """The keys of our `model` section that an exported model must have, with their values."""
        free = self.sets | self.keys.keys()
        return {key: value for key, value in PLAIN.items() if key not in free} | dict(self.style)


class PublishedConfig:
    """A config.json that records which of its keys were read, so that no key is overlooked."""

    def __init__(self, config: Mapping[str, Any], path: str):
        self._config, self.path = config, path
        self._read_keys: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, of the default's type; the default if the key is missing or null."""
        self._read_keys.add(key)
        value = self._config.get(key)
        if value is None or default is None:
            return default if value is None else value
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool):
            raise ConfigError(
                f"{self.path}: {key}={value!r} must be of the type of {default!r}, its "
                "default; correct it there"
            )
        return value

    def nullable(self, key: str, default: Any = None) -> Any:
        """The value of a key, which may be null (None); the default if the key is missing."""
        self._read_keys.add(key)
        return self._config.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a required key; raises ConfigError without it."""
        if self.get(key) is None:
            raise ConfigError(
                f"{self.path} has no {key}, which this model_type needs; download it again"
            )
        return self._config[key]

    def size(self, key: str) -> int:
        """The value of a required key, a positive integer."""
        value = self.need(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{self.path}: {key}={value!r} must be a positive number; correct it there"
            )
        return value

    def translate(self, key: str, choices: Mapping[str, Any], default: Any = None) -> Any:
        """Our name for the value of a key, `choices[value]`; refuses other values."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(key, value, f"supported are: {', '.join(choices)}")
        return choices[value]

    def differs(self, key: str, wanted: Any) -> str | None:
        """A problem if the value of a key is not `wanted`, the only supported one; else None."""
        value = self.get(key, wanted)
        if value == wanted:
            return None
        return f"{self.path}: {key}={value!r} is not supported; only {wanted!r} is"

    def require(self, key: str, wanted: Any) -> None:
        """Refuses any value but `wanted`."""
        if problem := self.differs(key, wanted):
            raise ConfigError(problem)

    def refuse(self, key: str, value: Any, why: str):
        """Raises ConfigError for the value of a key."""
        raise ConfigError(f"{self.path}: {key}={value!r} is not supported; {why}")

    @property
    def read_keys(self) -> frozenset[str]:
        """The keys that were read."""
        return frozenset(self._read_keys)


def heads_of(config: PublishedConfig, width: str, heads: str) -> dict[str, Any]:
    """Our keys for attention heads; `width` and `heads` are their keys for the two numbers."""
    size, count = config.size(width), config.size(heads)
    if size % count:
        config.refuse(heads, count, f"it does not divide {width}={size}")
    return dict(width=size, heads=count, kv_heads=count, head_size=size // count)


def require_plain_heads(model: TransformerConfig) -> None:
    """Raises MisfitError unless heads * head_size = width and heads share no keys and values."""
    if model.kv_heads != model.heads or model.head_size * model.heads != model.width:
        raise MisfitError(
            "needs model.kv_heads=0 and model.head_size=0: plain multi-head attention"
        )


def their_activation(ours: str) -> str:
    """Their name for our activation; raises MisfitError if there is none."""
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if ours not in names:
        raise MisfitError(f"model.activation={ours} is not one of: {', '.join(names)}")
    return names[ours]


class MisfitError(ValueError):
    """Our model cannot be exported as this architecture; the message says why."""
