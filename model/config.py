"""The `model` section of a config: the architecture of the network, as frozen data."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from experiment.schema import (
    Count,
    DropoutRate,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    did_you_mean,
)
from model.attention import KINDS, pattern_of, refusals

ABSOLUTE_POSITIONS = ("sinusoidal", "learned")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The keys of `model`. configs/default.py explains each key and sets its default."""

    family: Literal["encoder", "decoder", "encoder_decoder"]
    input: Literal["tokens", "patches"]

    vocab_size: Count
    width: PositiveInt
    encoder_layers: Count
    decoder_layers: Count
    heads: PositiveInt
    kv_heads: Count
    head_size: Count
    feed_forward: PositiveInt
    max_length: PositiveInt

    position: Literal["sinusoidal", "learned", "rope", "alibi", "t5_bias", "transformer_xl", "none"]
    sinusoidal_scale: NonNegativeFloat
    rope_theta: PositiveFloat
    rope_scaling: Literal["default", "linear", "ntk", "llama3"]
    rope_factor: PositiveFloat
    rope_low_frequency: PositiveFloat
    rope_high_frequency: PositiveFloat
    rope_original_length: PositiveInt
    relative_buckets: PositiveInt
    relative_max_distance: PositiveInt
    token_types: Count
    embedding_scale: bool
    embedding_norm: bool
    share_embeddings: bool
    tie_output: bool
    output_scale: bool
    output_bias: bool

    norm: Literal["layernorm", "rmsnorm"]
    norm_placement: Literal["pre", "post"]
    norm_epsilon: PositiveFloat
    activation: Literal[
        "relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"
    ]
    bias: bool
    attention: str
    attention_scale: bool
    attention_window: PositiveInt
    attention_dilation: PositiveInt
    attention_chunk: PositiveInt
    attention_overlap: Count
    attention_memory: Count
    attention_features: PositiveInt
    attention_kernel: Literal["softmax", "relu"]
    attention_redraw: Count
    attention_options: tuple[tuple[str, float], ...]
    global_tokens: Literal["first", "separators", "question"]
    global_limit: PositiveInt
    separator_id: Count

    image_size: Count
    image_channels: Count
    patch_size: PositiveInt
    class_token: bool

    num_classes: Count
    pooling: Literal["first", "last", "mean"]
    pooler: bool
    pooler_activation: Literal["tanh", "relu"]

    dropout_embedding: DropoutRate
    dropout_attention: DropoutRate
    dropout_residual: DropoutRate
    dropout_feed_forward: DropoutRate

    init_std: NonNegativeFloat
    dtype: Literal["float32", "bfloat16"]
    param_dtype: Literal["float32", "bfloat16"]
    matmul: Literal["float", "int8", "fp8"]
    remat: Literal["none", "dots", "save_attention", "full"]
    unroll: Count

    @property
    def has_encoder(self) -> bool:
        return self.family != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.family != "encoder"

    def attention_kind(self, layer: int) -> str:
        """Returns the attention kind of a layer. The layers repeat the pattern."""
        pattern = pattern_of(self.attention)
        return pattern[layer % len(pattern)]

    def attention_option(self, name: str) -> float:
        """Returns the value of an option that an attention kind declares, or its default."""
        defaults = {}
        for kind in pattern_of(self.attention):
            defaults |= KINDS[kind].options
        return {**defaults, **dict(self.attention_options)}[name]

    @property
    def score_scale(self) -> float:
        """The factor on the dot products of queries and keys."""
        return self.head_size**-0.5 if self.attention_scale else 1.0

    @property
    def has_global_tokens(self) -> bool:
        """Whether some layer uses global tokens, which are visible at any distance."""
        return any(KINDS[kind].uses_global_tokens for kind in pattern_of(self.attention))

    @property
    def draws_features(self) -> bool:
        """Whether training draws new random features from time to time."""
        kinds = pattern_of(self.attention)
        return self.attention_redraw > 0 and any(KINDS[kind].is_random for kind in kinds)

    @property
    def needs_separator(self) -> bool:
        return self.has_global_tokens and self.global_tokens != "first"

    def resolve(
        self,
        vocab_size: int = 0,
        separator_id: int = 0,
        num_classes: int = 0,
        image_size: int = 0,
        image_channels: int = 0,
    ) -> "TransformerConfig":
        """Replaces each 0 that means "infer": from the other keys, or from the data's sizes."""
        image_channels = self.image_channels or image_channels
        return dataclasses.replace(
            self,
            sinusoidal_scale=self.sinusoidal_scale or self._initial_embedding_std(image_channels),
            vocab_size=self.vocab_size or vocab_size,
            separator_id=self.separator_id or separator_id,
            kv_heads=self.kv_heads or self.heads,
            head_size=self.head_size or self.width // self.heads,
            num_classes=self.num_classes or num_classes,
            image_size=self.image_size or image_size,
            image_channels=image_channels,
        )

    def _initial_embedding_std(self, image_channels: int) -> float:
        """Standard deviation of token embeddings at init, or of patches of unit-variance pixels."""
        is_image = self.input == "patches"
        inputs = self.patch_size**2 * image_channels if is_image else self.width
        std = self.init_std * inputs**0.5 if self.init_std else 1.0
        return std if is_image or self.embedding_scale else std * self.width**-0.5

    def problems(self) -> Iterator[str]:
        """Yields a message for each value, or combination of values, that cannot work."""
        yield from self._size_problems()
        yield from self._position_problems()
        yield from self._attention_problems()
        yield from self._family_problems()
        yield from self._image_problems()

    def _size_problems(self) -> Iterator[str]:
        if not self.head_size and self.width % self.heads:
            yield (
                f"model.heads={self.heads} does not divide model.width={self.width}; "
                "change one, or set model.head_size"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            yield (
                f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}; "
                "each group of query heads shares one key/value head"
            )
        if self.has_encoder and not self.encoder_layers:
            yield f"model.encoder_layers=0, but family={self.family} needs at least 1"
        if self.has_decoder and not self.decoder_layers:
            yield f"model.decoder_layers=0, but family={self.family} needs at least 1"

    def _position_problems(self) -> Iterator[str]:
        head_size = self.head_size or self.width // self.heads
        if self.position == "rope" and head_size % 2:
            yield (
                "model.position=rope rotates pairs of columns, so the head size must be even, "
                f"not {head_size}; set model.head_size"
            )
        if self.rope_scaling != "default" and self.position != "rope":
            yield (
                f"model.rope_scaling={self.rope_scaling} needs model.position=rope, "
                f"not {self.position}; set it to default"
            )
        if self.rope_scaling == "default" and self.rope_factor != 1:
            yield (
                f"model.rope_factor={self.rope_factor:g} does nothing with "
                "model.rope_scaling=default; choose linear, ntk or llama3, or set it to 1"
            )
        if self.rope_scaling == "ntk" and head_size <= 2:
            yield (
                "model.rope_scaling=ntk slows down all pairs of columns but the first, so the head "
                f"size must be at least 4, not {head_size}; set model.head_size"
            )
        if self.rope_scaling == "llama3" and self.rope_low_frequency >= self.rope_high_frequency:
            yield (
                f"model.rope_low_frequency={self.rope_low_frequency:g} must be below "
                f"model.rope_high_frequency={self.rope_high_frequency:g}"
            )
        if self.position in ("sinusoidal", "transformer_xl") and self.width % 2:
            yield (
                f"model.position={self.position} has a sine and a cosine for each frequency, so "
                f"model.width={self.width} must be even"
            )
        if self.position == "t5_bias":
            smallest = 4 if self.has_encoder else 2
            if self.relative_buckets < smallest or self.relative_buckets % smallest:
                yield (
                    f"model.relative_buckets={self.relative_buckets} must be a multiple of "
                    f"{smallest} for family={self.family}"
                )
            elif self.relative_max_distance <= self.relative_buckets // 2:
                yield (
                    f"model.relative_max_distance={self.relative_max_distance} must exceed half of "
                    f"model.relative_buckets={self.relative_buckets}"
                )

    def _attention_problems(self) -> Iterator[str]:
        unknown = [kind for kind in pattern_of(self.attention) if kind not in KINDS]
        for kind in unknown:
            yield (
                f"model.attention={self.attention!r}: {kind!r} is not one of: {', '.join(KINDS)}."
                f"{did_you_mean(kind, KINDS)}"
            )
        if unknown:
            return
        asked = {
            "two_sided": self.has_encoder,
            "cross": self.family == "encoder_decoder",
            "dropout": self.dropout_attention > 0,
            "bias": self.position in ("alibi", "t5_bias"),
            "relative": self.position == "transformer_xl",
        }
        remedies = {
            "two_sided": "set model.family=decoder",
            "cross": "set model.family=decoder",
            "dropout": "set it to 0",
            "bias": "choose another position",
            "relative": "choose another position",
        }
        for feature, is_asked in asked.items():
            if is_asked:
                for reason in refusals(self.attention, feature):
                    yield f"{reason}; {remedies[feature]}, or choose another kind"
        if self.position == "transformer_xl" and self.has_encoder:
            yield (
                "model.position=transformer_xl encodes distances to earlier keys only, but the "
                f"encoder of family={self.family} also sees later keys; choose another position"
            )
        kinds = {name: KINDS[name] for name in pattern_of(self.attention)}
        known = [option for kind in kinds.values() for option in kind.options]
        for option, _ in self.attention_options:
            if option not in known:
                yield (
                    f"model.attention_options: {option!r} is not an option of "
                    f"{', '.join(kinds)}.{did_you_mean(option, known)} "
                    f"There are: {', '.join(known) or 'none'}"
                )
        for kind in kinds.values():
            yield from kind.problems(self)

    def _family_problems(self) -> Iterator[str]:
        if self.token_types and self.family != "encoder":
            yield (
                f"model.token_types={self.token_types} tells an encoder's two sentences apart; "
                f"family={self.family} has no use for it; set it to 0"
            )
        if self.output_scale and not self.tie_output:
            yield (
                "model.output_scale=True undoes the scale of a tied table; "
                "with model.tie_output=False set it to False"
            )

    def _image_problems(self) -> Iterator[str]:
        if self.input == "tokens":
            return
        if self.family != "encoder":
            yield (
                f"model.input=patches needs family=encoder, not {self.family}: "
                "images are encoded, not generated"
            )
        if self.token_types:
            yield f"model.token_types={self.token_types} needs model.input=tokens"
        if self.embedding_scale:
            yield "model.embedding_scale=True scales token embeddings and needs model.input=tokens"
        if self.pooling == "first" and not self.class_token:
            yield (
                "model.pooling=first reads the class token; "
                "set model.class_token=True or model.pooling=mean"
            )
        if self.image_size % self.patch_size:
            yield (
                f"model.patch_size={self.patch_size} does not divide "
                f"model.image_size={self.image_size}"
            )
