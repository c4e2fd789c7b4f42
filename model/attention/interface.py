"""The interface of attention kinds. Each kind is one object in one file of this package.

A kind must define `attend`, the training pass. By default, decoding from a cache is exact softmax
attention with the kind's mask (`locality`), and cross-attention is exact softmax attention to the
whole source; a kind overrides them if it differs. `KINDS` in `__init__.py` lists the kinds. Nothing
else in the project names a kind.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from model.attention.dot_attention import QKV, cached_attention
from model.attention.flash_attention import flash_attention
from model.masks import Locality, MaskSpec, count_visible
from model.positions import ScoreBias

if TYPE_CHECKING:
    from model.config import TransformerConfig

# The features that a kind supports or refuses: the columns of the table in docs/attention.md.
FEATURES = {
    "two_sided": "self-attention of encoders",
    "causal": "self-attention of decoders",
    "padding": "positions without a token",
    "segments": "several examples packed into a row",
    "prefix": "task.objective=prefix_lm",
    "cross": "attention to an encoder",
    "cached": "decoding token by token",
    "grouped": "model.kv_heads < model.heads",
    "dropout": "model.dropout_attention",
    "bias": "model.position=alibi or t5_bias",
    "relative": "model.position=transformer_xl",
    "cap": "model.score_cap",
    "sinks": "model.attention_sinks",
    "bfloat16": "model.dtype=bfloat16",
}
NO_SINKS = "its sum of weights has no term for a score without a key"
NEEDS_SCORES = "needs explicit scores, which this kind of attention never materialises"


@flax.struct.dataclass
class AttentionContext:
    """What all blocks of a stack share: masks, biases, positions and the source."""

    mask_spec: MaskSpec
    bias: ScoreBias | None = None
    # The mask and bias of every pair, computed once for all layers if some kind reads them.
    mask_b1ts: Array | None = None
    bias_bhts: Array | None = None
    rope_positions_bt: Array | None = None
    source_bsd: Array | None = None
    cross_mask_spec: MaskSpec | None = None
    cache_slot: Array | None = None  # the first slot of the cache that this call writes
    parents_bt: Array | None = None  # the slot that each token continues, if they are branches
    shared: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by kind


@flax.struct.dataclass
class KeyValues:
    """Cached keys and values, one slot per token, in the layout of `cached_attention`."""

    key_bgks: Array
    value_bgsk: Array
    has_token_slots: ClassVar[bool] = True  # so single tokens can be removed or masked

    @staticmethod
    def empty(config: "TransformerConfig", batch: int, slots: int) -> "KeyValues":
        """Returns zeros for `slots` tokens per row."""
        shape = (batch, config.kv_heads)
        return KeyValues(
            jnp.zeros((*shape, config.head_size, slots), config.dtype),
            jnp.zeros((*shape, slots, config.head_size), config.dtype),
        )

    @staticmethod
    def of(k_bsgk: Array, v_bsgk: Array) -> "KeyValues":
        """Returns keys and values in the layout of the cache."""
        return KeyValues(jnp.moveaxis(k_bsgk, 1, 3), jnp.moveaxis(v_bsgk, 1, 2))

    def token_order(self) -> tuple[Array, Array]:
        """Returns keys and values in the layout of the training pass, (B, S, G, K) each."""
        return jnp.moveaxis(self.key_bgks, 3, 1), jnp.moveaxis(self.value_bgsk, 2, 1)

    def write(self, k_btgk: Array, v_btgk: Array, slot: Array) -> "KeyValues":
        """Returns the cache with new keys and values in the slots from `slot` on."""
        new = KeyValues.of(k_btgk, v_btgk)
        return KeyValues(
            write(self.key_bgks, new.key_bgks, slot, axis=3),
            write(self.value_bgsk, new.value_bgsk, slot, axis=2),
        )


def write(buffer: Array, new: Array, index: Array, axis: int) -> Array:
    """Returns the buffer with `new` written at `index` of an axis: a scalar, or one per row."""
    if index.ndim:
        rows = jax.vmap(write, in_axes=(0, 0, 0, None))
        return rows(buffer, new, index, axis - 1)
    return jax.lax.dynamic_update_slice_in_dim(buffer, new.astype(buffer.dtype), index, axis)


@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """The inputs of one layer's attention."""

    config: "TransformerConfig"
    qkv: QKV
    context: AttentionContext
    mask_spec: MaskSpec  # with the kind's locality
    scale: float = 1.0
    cap: float = 0.0  # model.score_cap
    bias: ScoreBias | None = None
    bias_bhts: Array | None = None
    dropout_rate: float = 0.0
    dropout_key: Array | None = None
    # Projects the hidden states again. project("global") uses the extra projections of this name
    # (`extra_qkv`); project(stop_gradient=True) passes no gradient to the hidden states.
    project: Callable[..., QKV] | None = None
    shared: Any = None
    score_vector_hk: Array | None = None  # of kinds that ask for one
    sinks_h: Array | None = None  # model.attention_sinks: a score of each head, for no key

    @property
    def softmax_options(self) -> dict[str, Any]:
        """The keyword arguments that all softmax attention functions take.

        `sinks_h` is among them only if there are sinks, which not all of them support.
        """
        sinks = {} if self.sinks_h is None else dict(sinks_h=self.sinks_h)
        return dict(
            scale=self.scale,
            cap=self.cap,
            dropout_rate=self.dropout_rate,
            dropout_key=self.dropout_key,
            **sinks,
        )


class AttentionKind:
    """A kind of attention. Subclasses define a name, a description and the training pass."""

    name: str
    description: str
    refused: ClassVar[Mapping[str, str]] = {}  # unsupported features, with the reason
    keys: tuple[str, ...] = ()  # the keys of the `model` section that it reads
    options: ClassVar[Mapping[str, float]] = {}  # model.attention_options: keys and defaults
    extra_qkv: tuple[str, ...] = ()  # names of extra sets of query, key and value projections
    score_vector = False  # whether it has a learned vector for each head
    # Whether it is exact softmax attention to the keys that the mask and `locality` allow.
    is_exact = False
    # Whether it attends to a memory without gradient: project(stop_gradient=True).
    uses_memory = False
    reads_explicit_mask = False  # whether training reads context.mask_b1ts and bias_bhts
    uses_global_tokens = False
    is_random = False  # whether `shared` draws from the rng "features"

    def problems(self, config: "TransformerConfig") -> Iterator[str]:
        """Yields what is wrong with a config that uses this kind."""
        return iter(())

    def locality(self, config: "TransformerConfig") -> Locality | None:
        """Returns which keys are local, and so may be visible; None: all."""
        return None

    def mask_spec(self, config: "TransformerConfig", mask_spec: MaskSpec) -> MaskSpec:
        """Returns the mask of this kind. Only kinds that use global tokens get them."""
        queries, keys = mask_spec.queries, mask_spec.keys
        if not self.uses_global_tokens:
            queries, keys = (dataclasses.replace(x, global_bt=None) for x in (queries, keys))
        locality = self.locality(config)
        return dataclasses.replace(mask_spec, queries=queries, keys=keys, locality=locality)

    def shared(self, config: "TransformerConfig", rng: Callable[[], Array | None]) -> Any:
        """Returns a value that all layers share.

        `rng()` returns a random key in training, and None where nothing is redrawn.
        """
        return None

    def attend(self, inputs: AttentionInputs) -> Array:
        """Computes self-attention without a cache, (B, T, H, K)."""
        raise NotImplementedError

    def cross_attend(self, inputs: AttentionInputs) -> Array:
        """Computes cross-attention to the source, without locality, (B, T, H, K)."""
        return flash_attention(*inputs.qkv, inputs.mask_spec, **inputs.softmax_options)

    def init_cache(
        self, config: "TransformerConfig", batch: int, slots: int, *, keep_tokens: bool
    ) -> Any:
        """Returns the empty cache of one layer.

        With `keep_tokens` it must have a slot for each token (`has_token_slots`).
        """
        return KeyValues.empty(config, batch, slots)

    def decode(self, inputs: AttentionInputs, cache: Any) -> tuple[Array, Any]:
        """Writes the new tokens to the cache and attends to it: output (B, T, H, K), cache."""
        cache = cache.write(inputs.qkv.k_bsgk, inputs.qkv.v_bsgk, inputs.context.cache_slot)
        mask_b1ts = inputs.context.mask_b1ts
        if inputs.mask_spec.locality is not None:
            mask_b1ts = mask_b1ts & inputs.mask_spec.mask_b1ts()
        y_bthk = cached_attention(
            inputs.qkv.q_bthk,
            cache.key_bgks,
            cache.value_bgsk,
            mask_b1ts=mask_b1ts,
            bias_bhts=inputs.bias_bhts,
            scale=inputs.scale,
            cap=inputs.cap,
            sinks_h=inputs.sinks_h,
            change_scores=self.change_scores(inputs, mask_b1ts),
        )
        return y_bthk, cache

    def change_scores(
        self, inputs: AttentionInputs, mask_b1ts: Array
    ) -> Callable[[Array], Array] | None:
        """Returns a function of the scores (B, H, T, S) for decoding; None: no change."""
        return None

    def cross_decode(self, inputs: AttentionInputs, source: KeyValues) -> Array:
        """Computes cross-attention to the cached source; `inputs.qkv` has only queries."""
        return cached_attention(
            inputs.qkv.q_bthk,
            source.key_bgks,
            source.value_bgsk,
            mask_b1ts=inputs.mask_spec.mask_b1ts(),
            scale=inputs.scale,
            cap=inputs.cap,
        )

    def pairs(self, config: "TransformerConfig", length: int, *, causal: bool) -> int:
        """Returns the cost of a row in query-key pairs.

        These are the visible pairs, or the number of pairs that costs as many FLOPs.
        """
        return count_visible(self.locality(config), length, causal)

    def cross_pairs(self, config: "TransformerConfig", queries: int, keys: int) -> int:
        """`pairs` for cross-attention."""
        return queries * keys
