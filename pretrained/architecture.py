"""Architectures: tables between a published config.json and our `model` section."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from experiment.schema import ConfigError
from model.config import TransformerConfig
from pretrained.layouts import ModuleTable

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
    """The output of one of transformers' classes, in terms of our `task` section."""

    objective: str
    next_sentence: bool = False


@dataclasses.dataclass(frozen=True)
class Specials:
    """The special ids in a published config; None if it has none."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    decoder_start: int | None = None
    more_eos: tuple[int, ...] = ()  # further ids that end an answer, in chat models
    forced_bos: int | None = None  # begins an answer, after decoder_start
    forced_eos: bool = False  # the last token of an answer of maximum length is an end


Shapes = Mapping[str, tuple[int, ...]]
REQUIRED = None  # in place of a default


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How models of one `model_type` are read and written."""

    model_type: str
    heads: Mapping[str, Head]  # by the name of transformers' class
    # The keys of our `model` section that are the same in all its models.
    style: Mapping[str, Any]
    # Our key -> their key, and its default in transformers.
    keys: Mapping[str, tuple[str, Any]]
    # Their key -> the only value that is supported, which is also the default.
    fixed: Mapping[str, Any]
    # (model, head, special ids) -> the table from our modules to theirs.
    table: Callable[[TransformerConfig, Head, Specials], ModuleTable]
    # Keys that need more than renaming: (their config, the shapes of their tensors, head) -> our
    # keys; and (our model, head, special ids) -> their keys, or MisfitError.
    read_more: Callable[["PublishedConfig", Shapes, Head], dict[str, Any]]
    write_more: Callable[[TransformerConfig, Head, Specials], dict[str, Any]]
    # Parameters of ours, by path, of which only the first rows are exported.
    used_rows: Callable[[TransformerConfig], Mapping[str, int]] = lambda model: {}
    base: str = ""  # prefix of names in a full model, which a base model lacks
    renames: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for names of other versions
    derived: tuple[str, ...] = ()  # patterns of tensors that are computed: masks, sinusoids
    copies: tuple[tuple[str, str], ...] = ()  # (tied tensor, its original)
    zero_if_missing: tuple[str, ...] = ()  # tensors that files may lack
    # Modules of other heads, which files may have.
    other_heads: tuple[str, ...] = ()
    # Other names that transformers accepts for their keys, such as hidden_size for n_embd.
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Keys that change nothing, and keys that change nothing at these values.
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    # Their key -> the value at which tensors of the pattern are missing, which means zeros.
    absent_at: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    generates: bool = False


class PublishedConfig:
    """A config.json that records which keys were read, so that none is overlooked."""

    def __init__(self, config: Mapping[str, Any], path: str):
        self._config, self.path = config, path
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, which must have the default's type; the default if it is missing or null."""
        self._asked.add(key)
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

    def need(self, key: str) -> Any:
        """The value of a required key."""
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
        """Our name for a value: `choices[value]`."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(key, value, f"supported are: {', '.join(choices)}")
        return choices[value]

    def differs(self, key: str, wanted: Any) -> str | None:
        """The problem if a value is not the only supported one, else None."""
        value = self.get(key, wanted)
        if value == wanted:
            return None
        return f"{self.path}: {key}={value!r} is not supported; only {wanted!r} is computed here"

    def require(self, key: str, wanted: Any) -> None:
        if problem := self.differs(key, wanted):
            raise ConfigError(problem)

    def refuse(self, key: str, value: Any, why: str):
        raise ConfigError(f"{self.path}: {key}={value!r} is not supported; {why}")

    @property
    def asked(self) -> frozenset[str]:
        """The keys that were read."""
        return frozenset(self._asked)


def heads_of(config: PublishedConfig, width: str, heads: str) -> dict[str, Any]:
    """Our keys for heads that share the width evenly, from their keys for width and heads."""
    size, count = config.size(width), config.size(heads)
    if size % count:
        config.refuse(heads, count, f"it does not divide {width}={size}")
    return dict(width=size, heads=count, kv_heads=count, head_size=size // count)


def require_plain_heads(model: TransformerConfig) -> None:
    """Raises MisfitError unless heads share the width evenly and have their own keys and values."""
    if model.kv_heads != model.heads or model.head_size * model.heads != model.width:
        raise MisfitError("needs model.kv_heads=0 and model.head_size=0: equal heads of their own")


def their_activation(ours: str) -> str:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if ours not in names:
        raise MisfitError(f"model.activation={ours} is not one of: {', '.join(names)}")
    return names[ours]


class MisfitError(ValueError):
    """Our model cannot be written as this architecture; says why."""
