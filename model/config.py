"""The `model` section of a config: the architecture of the network, as frozen data."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from experiment.schema import (
    Bounds,
    Count,
    DropoutRate,
    NonNegativeFloat,
    OneOf,
    PositiveFloat,
    PositiveInt,
)
from model.attention import KINDS, pattern_of, refusals
from model.config_checks import model_problems
from model.mixers import ATTENTION, MIXERS, mixer_refusals

# Sizes are bounded, because tables of that size are made before memory can be estimated, and the
# config.json of a published model is not trusted.
LARGEST = 2**24
Size = Annotated[int, Bounds(at_least=1, at_most=LARGEST)]
SizeOrZero = Annotated[int, Bounds(at_least=0, at_most=LARGEST)]
RopeFraction = Annotated[float, Bounds(above=0, at_most=1)]


class LayerKind(NamedTuple):
    """What may differ between the layers of a stack."""

    attention: str  # the attention kind
    variant: int  # of the mixer
    rope: bool = True  # whether model.position=rope rotates this layer's queries and keys
    norm: bool = True  # whether what mixes tokens has a norm before it


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The keys of `model`. configs/default.py explains each key and sets its default."""

    family: Literal["encoder", "decoder", "encoder_decoder"]
    input: Literal["tokens", "patches"]

    vocab_size: SizeOrZero
    width: Size
    encoder_layers: SizeOrZero
    decoder_layers: SizeOrZero
    layer_groups: SizeOrZero
    heads: Size
    kv_heads: SizeOrZero
    head_size: SizeOrZero
    feed_forward: Size
    feed_forward_kind: Literal["mlp", "linear", "none"]
    experts: SizeOrZero
    experts_per_token: Size
    shared_experts: SizeOrZero
    router_scores: Literal["softmax", "sigmoid"]
    router_renormalise: bool
    router_bias: bool
    expert_capacity: NonNegativeFloat
    load_balance_loss: NonNegativeFloat
    router_z_loss: NonNegativeFloat
    max_length: Size

    position: Literal["sinusoidal", "learned", "rope", "alibi", "t5_bias", "transformer_xl", "none"]
    sinusoidal_scale: NonNegativeFloat
    sinusoidal_variant: Literal["paper", "tensor2tensor"]
    sinusoidal_offset: SizeOrZero
    rope_theta: PositiveFloat
    rope_local_theta: NonNegativeFloat
    rope_fraction: RopeFraction
    rope_layers: tuple[Annotated[int, Bounds(at_least=0, at_most=1)], ...]
    rope_scaling: Literal["default", "linear", "ntk", "llama3", "yarn", "longrope"]
    rope_factor: PositiveFloat
    rope_low_frequency: PositiveFloat
    rope_high_frequency: PositiveFloat
    rope_original_length: Size
    rope_attention_factor: NonNegativeFloat
    rope_truncate: bool
    rope_short_factors: tuple[PositiveFloat, ...]
    rope_long_factors: tuple[PositiveFloat, ...]
    relative_buckets: Size
    relative_max_distance: Size
    relative_bias: bool
    own_relative_bias: bool
    token_types: SizeOrZero
    embedding_size: SizeOrZero
    embedding_scale: bool
    embedding_multiplier: PositiveFloat
    embedding_norm: bool
    token_dropout: bool
    mask_id: Count
    share_embeddings: bool
    tie_output: bool
    output_scale: bool
    output_bias: bool
    logit_multiplier: PositiveFloat
    logit_cap: NonNegativeFloat

    residual: bool
    residual_multiplier: PositiveFloat
    layer_scale: NonNegativeFloat
    parallel_residual: Literal["none", "one_norm", "two_norms"]
    norm: Literal["layernorm", "rmsnorm", "none"]
    norm_placement: Literal["pre", "post", "sandwich", "reordered"]
    norm_epsilon: PositiveFloat
    first_norm: bool
    norm_zero_centered: bool
    norm_bias: bool
    activation: Literal[
        "relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu",
        "swiglu_clamped",
    ]  # fmt: skip
    activation_limit: PositiveFloat
    bias: bool
    mixer: Annotated[str, OneOf(lambda: (ATTENTION, *MIXERS))]
    mixer_options: tuple[tuple[str, float], ...]
    bridge: Literal["attention", "context_vector"]
    attention: str
    attention_scale: bool
    attention_multiplier: NonNegativeFloat
    attention_scale_init: bool
    attention_bias: Literal["default", "qkv", "all"]
    score_cap: NonNegativeFloat
    attention_sinks: bool
    qk_norm: Literal["none", "head", "heads", "full"]
    share_qk: bool
    attention_window: PositiveInt
    attention_dilation: Size
    attention_chunk: PositiveInt
    attention_overlap: SizeOrZero
    attention_memory: SizeOrZero
    attention_features: Size
    attention_kernel: Literal["softmax", "relu"]
    attention_redraw: Count
    attention_options: tuple[tuple[str, float], ...]
    global_tokens: Literal["first", "separators", "question"]
    global_limit: Size
    separator_id: Count

    image_size: SizeOrZero
    image_channels: SizeOrZero
    position_image_size: SizeOrZero
    patch_size: Size
    class_token: bool
    distillation: Literal["none", "token", "head"]
    input_shape: tuple[Size, ...]
    input_mean: tuple[float, ...]
    input_std: tuple[PositiveFloat, ...]
    horizon: SizeOrZero

    num_classes: SizeOrZero
    pooling: Literal["first", "last", "mean", "first_mean"]
    pooler: bool
    pooler_activation: Literal["tanh", "relu", "gelu"]
    pooler_norm: bool
    head_bias: bool
    class_bias: bool

    dropout_embedding: DropoutRate
    dropout_attention: DropoutRate
    dropout_residual: DropoutRate
    dropout_feed_forward: DropoutRate

    init_std: NonNegativeFloat
    parametrization: Literal["standard", "mup"]
    mup_base_width: SizeOrZero
    mup_base_head_size: SizeOrZero
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

    @property
    def layer_pattern(self) -> tuple[LayerKind, ...]:
        """The kinds of layers; the layers repeat them."""
        kinds, variants = pattern_of(self.attention), (0,)
        if self.mixer != ATTENTION:
            variants = MIXERS[self.mixer].variants(self)
        rotates = tuple(map(bool, self.rope_layers)) or (True,)
        parts = kinds, variants, rotates
        length = math.lcm(*map(len, parts))
        return tuple(LayerKind(*(part[n % len(part)] for part in parts)) for n in range(length))

    def layer_kind(self, layer: int) -> LayerKind:
        """Returns the kind of a layer."""
        kind = self.layer_pattern[layer % len(self.layer_pattern)]
        return kind._replace(norm=False) if not layer and not self.first_norm else kind

    @property
    def embedding_width(self) -> int:
        """The number of columns of the embedding tables."""
        return self.embedding_size or self.width

    @property
    def has_relative_bias(self) -> bool:
        """Whether scores have T5's bias of relative positions."""
        return self.position == "t5_bias" or self.relative_bias

    @property
    def patched_shape(self) -> tuple[int, ...]:
        """The shape of an input that is cut into patches: its axes and channels."""
        return self.input_shape or (self.image_size, self.image_size, self.image_channels)

    @property
    def patches_per_axis(self) -> tuple[int, ...]:
        return tuple(size // self.patch_size for size in self.patched_shape[:-1])

    @property
    def values_per_patch(self) -> int:
        *axes, channels = self.patched_shape
        return self.patch_size ** len(axes) * channels

    @property
    def patch_tokens(self) -> int:
        """How many tokens an input becomes, with those before the patches."""
        return math.prod(self.patches_per_axis) + self.leading_tokens

    @property
    def position_rows(self) -> int:
        """How many rows of a table of learned positions images use."""
        size = self.position_image_size or self.image_size
        return (size // self.patch_size) ** 2 + self.leading_tokens

    @property
    def leading_tokens(self) -> int:
        """How many learned tokens are before the patches."""
        return self.class_token + (self.distillation != "none")

    @property
    def pooled_width(self) -> int:
        """The number of columns of what a row is pooled to, before the pooler."""
        return 2 * self.width if self.pooling == "first_mean" else self.width

    @property
    def norms_input(self) -> bool:
        """Whether the input of a sublayer is normalised."""
        return self.norm_placement in ("pre", "sandwich")

    @property
    def norms_output(self) -> bool:
        """Whether the output of a sublayer is normalised, before it is added."""
        return self.norm_placement in ("sandwich", "reordered")

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block: unless that block ends with one."""
        return self.norm_placement != "post"

    @property
    def has_qkv_bias(self) -> bool:
        return self.bias or self.attention_bias != "default"

    @property
    def has_attention_out_bias(self) -> bool:
        return self.bias or self.attention_bias == "all"

    @property
    def has_cross_attention(self) -> bool:
        return self.family == "encoder_decoder" and self.bridge == "attention"

    @property
    def has_context_vector(self) -> bool:
        """Whether the decoder gets one vector of the source, in place of cross-attention."""
        return self.family == "encoder_decoder" and self.bridge == "context_vector"

    @property
    def has_attention(self) -> bool:
        """Whether some layer attends: to its own sequence or to the source."""
        return self.mixer == ATTENTION or self.has_cross_attention

    def mixer_option(self, name: str) -> float:
        """Returns the value of an option that the mixer declares, or its default."""
        return {**MIXERS[self.mixer].options, **dict(self.mixer_options)}[name]

    def refusals(self, feature: str) -> Iterator[str]:
        """Yields why the layers that mix tokens lack a feature."""
        if self.mixer == ATTENTION:
            return refusals(self.attention, feature)
        return mixer_refusals(self.mixer, feature)

    def attention_option(self, name: str) -> float:
        """Returns the value of an option that an attention kind declares, or its default."""
        defaults = {}
        for kind in pattern_of(self.attention):
            defaults |= KINDS[kind].options
        return {**defaults, **dict(self.attention_options)}[name]

    @property
    def base_width(self) -> int:
        """The width that muP tuned the initial sizes and the learning rate for; else `width`."""
        return self.mup_base_width if self.parametrization == "mup" else self.width

    @property
    def width_multiplier(self) -> float:
        """How many times wider than the base model this one is; 1 without muP."""
        return self.width / self.base_width

    @property
    def base_head_size(self) -> float:
        return self.mup_base_head_size or self.head_size * self.base_width / self.width

    @property
    def score_scale(self) -> float:
        """The factor on the dot products of queries and keys; with muP, it falls like 1 / K."""
        if self.attention_multiplier:
            return self.attention_multiplier
        base = self.base_head_size
        return (base**-0.5 if self.attention_scale else 1.0) * (base / self.head_size)

    @property
    def query_init_scale(self) -> float:
        """The factor on the initial variance of the query weights; with share_qk, also of keys."""
        if self.attention_scale or not self.attention_scale_init:
            return 1.0
        return self.base_head_size**-0.5 if self.share_qk else 1 / self.base_head_size

    @property
    def has_global_tokens(self) -> bool:
        """Whether some layer uses global tokens, which are visible at any distance."""
        return any(KINDS[kind].uses_global_tokens for kind in pattern_of(self.attention))

    @property
    def has_score_vector(self) -> bool:
        """Whether the layers have a vector for the scores of each head."""
        return any(KINDS[kind].score_vector for kind in pattern_of(self.attention))

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
        mask_id: int = 0,
        num_classes: int = 0,
        image_size: int = 0,
        image_channels: int = 0,
        input_shape: tuple[int, ...] = (),
        input_mean: tuple[float, ...] = (),
        input_std: tuple[float, ...] = (),
        horizon: int = 0,
    ) -> "TransformerConfig":
        """Replaces each 0 or () that means "infer": from other keys, or from the data."""
        sized = dataclasses.replace(
            self,
            image_size=self.image_size or image_size,
            image_channels=self.image_channels or image_channels,
            input_shape=self.input_shape or input_shape,
            input_mean=self.input_mean or input_mean,
            input_std=self.input_std or input_std,
            horizon=self.horizon or horizon,
        )
        return dataclasses.replace(
            sized,
            sinusoidal_scale=self.sinusoidal_scale or sized._initial_embedding_std(),
            vocab_size=self.vocab_size or vocab_size,
            separator_id=self.separator_id or separator_id,
            mask_id=self.mask_id or mask_id,
            kv_heads=self.kv_heads or self.heads,
            head_size=self.head_size or self.width // self.heads,
            num_classes=self.num_classes or num_classes,
        )

    def _initial_embedding_std(self) -> float:
        """Standard deviation of token embeddings at init, or of patches of unit-variance values."""
        is_patched = self.input == "patches"
        inputs = self.values_per_patch if is_patched else self.base_width
        std = self.init_std * inputs**0.5 if self.init_std else 1.0
        std *= self.embedding_multiplier
        return std if is_patched or self.embedding_scale else std * self.base_width**-0.5

    def problems(self) -> Iterator[str]:
        """Yields a message for each value, or combination of values, that cannot work."""
        yield from model_problems(self)
