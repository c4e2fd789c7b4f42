"""Parts that the tables of decoders share: heads, rotary positions, windows, biases, multipliers.

A part is a group of keys with a function for each direction. A decoder lists its parts.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model.attention import KINDS
from model.config import TransformerConfig
from model.masks import Locality
from pretrained.architecture import Architecture, Head, MisfitError, PublishedConfig

FULL, SLIDING = "dot", "local"  # our kinds of attention for their kinds of layers
LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING}


@dataclasses.dataclass(frozen=True)
class ConfigPart:
    """Some keys of our `model` section, and how they are read from and written to a config.json."""

    ours: tuple[str, ...]
    read: Callable[[PublishedConfig], dict[str, Any]]
    write: Callable[[TransformerConfig], dict[str, Any]]


def decoder(
    model_type: str,
    class_name: str,
    parts: Sequence[ConfigPart],
    *,
    style: Mapping[str, Any],
    dropout: Sequence[str] = ("attention",),
    classifier: str = "",
    **fields,
) -> Architecture:
    """An architecture of decoders; `dropout` names the kinds of dropout that it has.

    `classifier` is the class that classifies a text by its last token.
    """

    def read_more(config, shapes, head):
        del shapes
        ours = dict(encoder_layers=0, pooling="last", class_bias=head.objective == "causal_lm")
        for part in parts:
            ours |= part.read(config)
        return ours

    def write_more(model, head, ids):
        del ids
        require_last_token(model, head)
        kinds = ("embedding", "attention", "residual", "feed_forward")
        others = [kind for kind in kinds if kind not in dropout]
        if any(getattr(model, f"dropout_{kind}") for kind in others):
            has = " and ".join(f"model.dropout_{kind}" for kind in dropout)
            raise MisfitError(f"has only {has}; set the other kinds of dropout to 0")
        theirs = {}
        for part in parts:
            theirs |= part.write(model)
        return theirs

    classifiers = {classifier: Head("classify_text")} if classifier else {}
    return Architecture(
        model_type=model_type,
        heads={class_name: Head("causal_lm"), **classifiers},
        style=dict(
            family="decoder", input="tokens", token_types=0, embedding_norm=False,
            output_scale=False, output_bias=False, attention_scale=True, **style,
        ),
        read_more=read_more,
        write_more=write_more,
        sets=frozenset(("class_bias", *(key for part in parts for key in part.ours))),
        generates=True,
        **fields,
    )  # fmt: skip


def require_last_token(model: TransformerConfig, head: Head) -> None:
    """Raises MisfitError for a classifier that is no plain layer on the last token."""
    is_plain = model.pooling == "last" and not (model.pooler or model.class_bias)
    if head.reads_texts and not is_plain:
        raise MisfitError(
            "a classifier needs model.pooling=last, model.pooler=False, model.class_bias=False"
        )


def heads_part(
    *, kv_heads: str = "num_key_value_heads", kv_default: bool = False, head_size: int | None = 0
) -> ConfigPart:
    """Heads. With `kv_default`, a config without `kv_heads` has as many as query heads.

    `head_size` is the default of head_dim; 0: width / heads; None: there is no such key.
    """

    def read(config: PublishedConfig) -> dict[str, Any]:
        width, heads = config.size("hidden_size"), config.size("num_attention_heads")
        if head_size is None and width % heads:
            config.refuse("num_attention_heads", heads, f"it does not divide hidden_size={width}")
        size = width // heads
        if head_size is not None:
            size = config.get("head_dim", head_size or size)
        groups = config.get(kv_heads, heads) if kv_default else config.size(kv_heads)
        return dict(width=width, heads=heads, kv_heads=groups, head_size=size)

    def write(model: TransformerConfig) -> dict[str, Any]:
        theirs = dict(hidden_size=model.width, num_attention_heads=model.heads)
        if head_size is None and model.head_size * model.heads != model.width:
            raise MisfitError("needs model.head_size=0: width / heads")
        if head_size is not None:
            theirs |= dict(head_dim=model.head_size)
        return theirs | {kv_heads: model.kv_heads}

    return ConfigPart(("width", "heads", "kv_heads", "head_size"), read, write)


def bool_part(ours: str, theirs: str, default: bool, values: tuple[Any, Any] = (False, True)):
    """A key of ours that follows from a switch of theirs: `values` are for off and on."""

    def read(config: PublishedConfig) -> dict[str, Any]:
        return {ours: values[config.get(theirs, default)]}

    def write(model: TransformerConfig) -> dict[str, Any]:
        value = getattr(model, ours)
        if value not in values:
            raise MisfitError(f"needs model.{ours}={values[0]} or {values[1]}, not {value}")
        return {theirs: value == values[1]}

    return ConfigPart((ours,), read, write)


def number_part(
    ours: str,
    theirs: str,
    default: float | None,
    *,
    to_ours: Callable[[float], float] = float,
    to_theirs: Callable[[float], float] = float,
    off: float | None = None,
) -> ConfigPart:
    """A number. `off` is our value for null, which is their way to switch the key off.

    Without a default, a config must have the key.
    """

    def read(config: PublishedConfig) -> dict[str, Any]:
        value = config.nullable(theirs, default) if off is not None else config.get(theirs, default)
        if value is None and off is not None:
            return {ours: off}
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            config.refuse(theirs, value, "it must be a number above 0")
        return {ours: to_ours(value)}

    def write(model: TransformerConfig) -> dict[str, Any]:
        value = getattr(model, ours)
        return {theirs: None if off is not None and value == off else to_theirs(value)}

    return ConfigPart((ours,), read, write)


def score_scale_part(theirs: str, default: float, **functions) -> ConfigPart:
    """The factor on the scores; our models may leave it to the head size."""
    part = number_part("attention_multiplier", theirs, default, **functions)
    to_theirs = functions.get("to_theirs", float)
    return dataclasses.replace(part, write=lambda model: {theirs: to_theirs(model.score_scale)})


def activation_part(key: str, default: str, names: Mapping[str, str]) -> ConfigPart:
    """The activation; `names` are ours by theirs."""

    def write(model: TransformerConfig) -> dict[str, Any]:
        found = [theirs for theirs, ours in names.items() if ours == model.activation]
        if not found:
            usable = ", ".join(dict.fromkeys(names.values()))
            raise MisfitError(f"model.activation={model.activation} is not one of: {usable}")
        return {key: found[0]}

    return ConfigPart(
        ("activation",),
        lambda config: dict(activation=config.translate(key, names, default)),
        write,
    )


tied_part = functools.partial(bool_part, "tie_output", "tie_word_embeddings")
ATTENTION_BIAS = bool_part("attention_bias", "attention_bias", False, ("default", "all"))


def layer_types_of(model: TransformerConfig) -> list[str]:
    """Their kind of each layer; raises MisfitError for attention that they do not have."""
    types = []
    for layer in range(model.decoder_layers if model.has_decoder else model.encoder_layers):
        name = model.attention_kind(layer)
        locality = KINDS[name].locality(model)
        if not KINDS[name].is_exact or locality not in (None, _window(model)):
            raise MisfitError(f"has no layers with model.attention={name}")
        types.append("full_attention" if locality is None else "sliding_attention")
    return types


def require_full_attention(model: TransformerConfig) -> None:
    """Raises MisfitError unless every layer attends to all keys that the mask allows."""
    kinds = {model.attention_kind(n) for n in range(model.encoder_layers + model.decoder_layers)}
    for name in sorted(kinds):
        if not KINDS[name].is_exact or KINDS[name].locality(model) is not None:
            raise MisfitError(f"has no layers with model.attention={name}")


def _window(model: TransformerConfig) -> Locality:
    return Locality(window=model.attention_window)


def window_part(default: int | None, *, switch: str = "") -> ConfigPart:
    """A window of all layers, or of none; `switch` is the key that must be true for one."""

    def read(config: PublishedConfig) -> dict[str, Any]:
        window = config.nullable("sliding_window", default)
        if window is None or (switch and not config.get(switch, False)):
            return dict(attention=FULL)
        return dict(attention=SLIDING, attention_window=_window_size(config, window))

    def write(model: TransformerConfig) -> dict[str, Any]:
        kinds = set(layer_types_of(model))
        if len(kinds) > 1:
            raise MisfitError("has windows in all layers or in none")
        is_full = kinds == {"full_attention"}
        theirs = dict(sliding_window=None if is_full else model.attention_window)
        return theirs | ({switch: not is_full} if switch else {})

    return ConfigPart(("attention", "attention_window"), read, write)


def layer_types_part(
    default: Callable[[PublishedConfig, int], list[str]],
    *,
    window: int | None = 4096,
    switch: str = "",
) -> ConfigPart:
    """Windows by layer. `switch` is the key that must be true for any window to count.

    `default` returns the kinds of layers of a config that does not list them.
    """

    def read(config: PublishedConfig) -> dict[str, Any]:
        size = config.nullable("sliding_window", window)
        if switch and not config.get(switch, False):
            size = None
        types = read_layer_types(config, default)
        if "sliding_attention" not in types:
            return dict(attention=FULL)
        if size is None:
            config.refuse("layer_types", "sliding_attention", "there is no sliding_window")
        names = shortest_pattern([LAYER_TYPES[each] for each in types])
        return dict(attention=",".join(names), attention_window=_window_size(config, size))

    def write(model: TransformerConfig) -> dict[str, Any]:
        types = layer_types_of(model)
        has_window = "sliding_attention" in types
        theirs = dict(layer_types=types)
        if has_window or not switch:
            theirs |= dict(sliding_window=model.attention_window)
        return theirs | ({switch: has_window} if switch else {})

    return ConfigPart(("attention", "attention_window"), read, write)


def read_layer_types(
    config: PublishedConfig, default: Callable[[PublishedConfig, int], list[str]]
) -> list[str]:
    """Their kind of each layer; `default` returns those of a config that does not list them."""
    layers = config.size("num_hidden_layers")
    types = config.get("layer_types") or default(config, layers)
    if not isinstance(types, list) or len(types) != layers:
        config.refuse("layer_types", types, f"it must list the kinds of {layers} layers")
    unknown = [each for each in types if each not in list(LAYER_TYPES)]
    if unknown:
        config.refuse("layer_types", unknown[0], f"supported are: {', '.join(LAYER_TYPES)}")
    return types


def _window_size(config: PublishedConfig, window: Any) -> int:
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        config.refuse("sliding_window", window, "it must be a number of positions")
    return window


def shortest_pattern(layers: Sequence[Any]) -> list[Any]:
    """The shortest start of a list that gives the list if it is repeated."""
    for period in range(1, len(layers) + 1):
        if all(layers[n] == layers[n % period] for n in range(len(layers))):
            return list(layers[:period])
    return list(layers)
