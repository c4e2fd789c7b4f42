"""What an architecture is here: tables between a published config.json and our `model` section."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from experiment.schema import ConfigError
from model.config import TransformerConfig
from pretrained.layouts import Table

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
    """What one of transformers' classes answers with, as our `task`."""

    objective: str
    next_sentence: bool = False


@dataclasses.dataclass(frozen=True)
class Specials:
    """Ids that a published config names; None where there is none."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    decoder_start: int | None = None
    more_eos: tuple[int, ...] = ()  # others that end an answer, as of chat models
    forced_bos: int | None = None  # what an answer begins with behind decoder_start


Shapes = Mapping[str, tuple[int, ...]]
REQUIRED = None  # stands where a default would


@dataclasses.dataclass(frozen=True)
class Architecture:
    model_type: str
    heads: Mapping[str, Head]  # by the class's name
    # What is the same in all models of the kind, as keys of our `model` section.
    style: Mapping[str, Any]
    # Our key <- their key, and what it is where their config does not say.
    keys: Mapping[str, tuple[str, Any]]
    # Their key -> the one value of it that is computed here, and that an absent key stands for.
    fixed: Mapping[str, Any]
    # Our modules <- their modules, for a model and a head of this kind, with these special ids.
    table: Callable[[TransformerConfig, Head, Specials], Table]
    # What is not a matter of renaming: (their options, the shapes of their tensors, head) -> our
    # keys; and our model -> their keys, or a MisfitError.
    read_more: Callable[["Options", Shapes, Head], dict[str, Any]]
    write_more: Callable[[TransformerConfig, Head, Specials], dict[str, Any]]
    # Parameters of ours, by path, that go out cut to so many rows.
    used_rows: Callable[[TransformerConfig], Mapping[str, int]] = lambda model: {}
    base: str = ""  # what the names of a whole model have in front, and those of a base model lack
    renames: tuple[tuple[str, str], ...] = ()  # patterns of other versions' names -> ours
    derived: tuple[str, ...] = ()  # patterns of tensors that can be computed: masks, sinusoids
    copies: tuple[tuple[str, str], ...] = ()  # a tied tensor's name, and that of the original
    zero_if_missing: tuple[str, ...] = ()  # tensors that files may leave out
    # Modules that the table of some head lacks, and files may have.
    other_heads: tuple[str, ...] = ()
    # Other names that transformers takes for their keys, such as hidden_size for n_embd.
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Keys of this architecture that change nothing, and those that do not at one of these values.
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    # Their key -> its value that says that tensors of this pattern are not there. They are zeros.
    absent_at: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    generates: bool = False


class Options:
    """A config.json whose keys are asked for one by one, so that none is overlooked."""

    def __init__(self, config: Mapping[str, Any], path: str):
        self._config, self.path = config, path
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default where it is missing or null; it must be of the same type."""
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
        if self.get(key) is None:
            raise ConfigError(
                f"{self.path} has no {key}, which this model_type needs; download it again"
            )
        return self._config[key]

    def size(self, key: str) -> int:
        value = self.need(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{self.path}: {key}={value!r} must be a positive number; correct it there"
            )
        return value

    def choose(self, key: str, choices: Mapping[str, Any], default: Any = None) -> Any:
        """What a value stands for here."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(key, value, f"supported are: {', '.join(choices)}")
        return choices[value]

    def differs(self, key: str, wanted: Any) -> str | None:
        """What is wrong with a value that is there and is not the one that is computed here."""
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
        """Keys that somebody asked for."""
        return frozenset(self._asked)


def heads_of(options: Options, width: str, heads: str) -> dict[str, Any]:
    """Heads that share the width evenly, as nearly all architectures have them."""
    size, count = options.size(width), options.size(heads)
    if size % count:
        options.refuse(heads, count, f"it does not divide {width}={size}")
    return dict(width=size, heads=count, kv_heads=count, head_size=size // count)


def require_plain_heads(model: TransformerConfig) -> None:
    if model.kv_heads != model.heads or model.head_size * model.heads != model.width:
        raise MisfitError("needs model.kv_heads=0 and model.head_size=0: equal heads of their own")


def their_activation(ours: str) -> str:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if ours not in names:
        raise MisfitError(f"model.activation={ours} is not one of: {', '.join(names)}")
    return names[ours]


class MisfitError(ValueError):
    """Why a model of ours is not of an architecture."""
