"""Position schemes as pure functions of integer positions.

`sinusoidal` and `learned` are added to the embeddings, `rope` rotates queries and keys, `alibi`,
`t5_bias` and `transformer_xl` are added to the attention scores. Relative schemes apply to
self-attention only.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    from model.config import TransformerConfig

ABSOLUTE_POSITIONS = ("sinusoidal", "learned")  # added to embeddings; the others act in attention


def sinusoidal(positions_bt: Array, width: int, variant: str = "paper") -> Array:
    """Sinusoidal positions of the 2017 paper, (B, T, D) in float32: t / 10000^(2i/D).

    All sines come before all cosines, as in Marian's checkpoints. The paper interleaves them,
    which only permutes the columns. With `variant` "tensor2tensor", the exponent is i / (D/2 - 1),
    so that the last frequency is 1/10000 itself, as in the paper's code and in fairseq.
    """
    exponents = np.arange(0, width, 2, dtype=np.float64) / width
    if variant == "tensor2tensor":
        exponents *= width / (width - 2)
    frequencies = 10_000.0**-exponents
    angles = positions_bt[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotary_size(config: "TransformerConfig") -> int:
    """Returns the number of columns of a head that rope rotates."""
    return int(config.head_size * config.rope_fraction)


def rope_frequencies(config: "TransformerConfig", *, local: bool = False) -> np.ndarray:
    """Returns the rotation per position of each pair of rotated columns, in radians.

    Layers with a window (`local`) may have their own theta and no scaling: model.rope_local_theta.

    Scaling lowers the frequencies, so that longer texts look like those of training. `linear`
    divides all by the factor. `ntk` raises theta: it divides the lowest frequency by the factor,
    the highest by 1, and those between by a power of the factor. `llama3` divides those with fewer
    than `rope_low_frequency` turns in the original length, leaves those with more than
    `rope_high_frequency` turns, and interpolates between. `yarn` does the same, but interpolates
    linearly over the index of the pair (arXiv:2309.00071). `longrope` divides each frequency by its
    own number (arXiv:2402.13753).
    """
    size = rotary_size(config)
    exponents = np.arange(0, size, 2, dtype=np.float64) / size
    if local and config.rope_local_theta:
        return (config.rope_local_theta**-exponents).astype(np.float32)
    frequencies = config.rope_theta**-exponents
    match config.rope_scaling:
        case "linear":
            frequencies = frequencies / config.rope_factor
        case "ntk":
            theta = config.rope_theta * config.rope_factor ** (size / (size - 2))
            frequencies = theta**-exponents
        case "llama3":
            turns = config.rope_original_length * frequencies / (2 * np.pi)
            low, high = config.rope_low_frequency, config.rope_high_frequency
            unscaled = np.clip((turns - low) / (high - low), 0, 1)
            frequencies = frequencies * (unscaled + (1 - unscaled) / config.rope_factor)
        case "yarn":
            ends = config.rope_high_frequency, config.rope_low_frequency
            first, last = (_pair_of_turns(config, size, turns) for turns in ends)
            if config.rope_truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, size - 1)
            # As in the authors' code, 0.001 avoids a division by zero.
            width = (last - first) or 0.001
            unscaled = 1 - np.clip((np.arange(size // 2) - first) / width, 0, 1)
            frequencies = frequencies * (unscaled + (1 - unscaled) / config.rope_factor)
        case "longrope":
            is_long = config.max_length > config.rope_original_length
            factors = config.rope_long_factors if is_long else config.rope_short_factors
            frequencies = frequencies / np.asarray(factors, np.float64)
    return frequencies.astype(np.float32)


def _pair_of_turns(config: "TransformerConfig", size: int, turns: float) -> float:
    """Returns the pair of columns with this many turns in the original length, not rounded."""
    ratio = config.rope_original_length / (turns * 2 * math.pi)
    return size * math.log(ratio) / (2 * math.log(config.rope_theta))


def rope_attention_factor(config: "TransformerConfig", *, local: bool = False) -> float:
    """Returns the factor on rotated queries and keys, which yarn and longrope have."""
    factor = config.rope_factor
    if config.rope_scaling not in ("yarn", "longrope") or (local and config.rope_local_theta):
        return 1.0
    if config.rope_attention_factor:
        return config.rope_attention_factor
    if factor <= 1:
        return 1.0
    if config.rope_scaling == "yarn":
        return 0.1 * math.log(factor) + 1
    return math.sqrt(1 + math.log(factor) / math.log(config.rope_original_length))


def rope(x_bthk: Array, positions_bt: Array, frequencies: np.ndarray, factor: float = 1.0) -> Array:
    """Rotates each head's vector by its position, and multiplies it by `factor`.

    Of R = 2 * len(frequencies) columns, column i forms a pair with column i + R/2. The columns
    after them stay as they are.

    This is the half-split convention of Llama's published weights. Angles are always float32,
    because bfloat16 cannot tell position 257 from 258.
    """
    angles = positions_bt[..., None, None].astype(jnp.float32) * frequencies
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    if factor != 1:
        sin, cos = sin * factor, cos * factor
    size = 2 * len(frequencies)
    first, second = jnp.split(x_bthk[..., :size].astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = rotated.astype(x_bthk.dtype)
    if size == x_bthk.shape[-1]:
        return rotated
    return jnp.concatenate([rotated, x_bthk[..., size:]], axis=-1)


def alibi_slopes(heads: int) -> np.ndarray:
    """Returns the ALiBi paper's slopes, (H): 2^(-8/H), 2^(-16/H), ... if H is a power of two.

    Otherwise, as in the authors' code: the slopes of the next lower power of two, then every
    other slope of the next higher one.
    """
    below = 2 ** int(np.log2(heads))
    head_slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    if below < heads:
        head_slopes = np.concatenate([head_slopes, alibi_slopes(2 * below)[0::2][: heads - below]])
    return head_slopes.astype(np.float32)


def t5_bucket(
    relative_bts: Array, *, bidirectional: bool, buckets: int, max_distance: int
) -> Array:
    """Returns T5's bucket of each relative position (key minus query), (B, T, S).

    Half of the buckets are exact distances; the others grow logarithmically up to `max_distance`.
    Two-sided attention uses half of all buckets for keys after the query.
    """
    offset_bts = jnp.zeros_like(relative_bts)
    if bidirectional:
        buckets //= 2
        offset_bts = jnp.where(relative_bts > 0, buckets, 0)
        distance_bts = jnp.abs(relative_bts)
    else:
        distance_bts = jnp.maximum(-relative_bts, 0)
    table = jnp.asarray(_t5_bucket_of_distance(buckets, max_distance))
    return offset_bts + table[jnp.minimum(distance_bts, max_distance)]


def _t5_bucket_of_distance(buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance, by NumPy: an accelerator's log may round otherwise."""
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    log_ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = log_ratio / np.log(max_distance / exact).astype(np.float32) * (buckets - exact)
    far = np.minimum(exact + far.astype(np.int32), buckets - 1)
    return np.where(distance < exact, distance, far).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class ScoreBias:
    """The bias that relative positions add to scores, not materialised for every pair.

    Attention kinds call it for the queries and keys that they process. Gradients of `table` and
    `shift_hk` add up over the calls.
    """

    scheme: str  # alibi | t5_bias | transformer_xl
    # alibi: slopes (H); t5_bias: a value for each bucket (buckets, H); transformer_xl: a key for
    # each distance (Z, H, K)
    table: Array
    shift_hk: Array | None = None  # transformer_xl: added to queries before the product
    bidirectional: bool = False  # t5_bias only, like max_distance
    max_distance: int = 0

    def __call__(self, q_bthk: Array, query_positions_bt: Array, key_positions_bs: Array) -> Array:
        """Returns the bias (B, H, T, S) in float32. `q_bthk` are the scaled queries."""
        relative_bts = key_positions_bs[:, None] - query_positions_bt[:, :, None]
        match self.scheme:
            case "alibi":
                distance_b1ts = jnp.abs(relative_bts)[:, None].astype(jnp.float32)
                return -self.table[:, None, None] * distance_b1ts
            case "t5_bias":
                buckets_bts = t5_bucket(
                    relative_bts,
                    bidirectional=self.bidirectional,
                    buckets=self.table.shape[0],
                    max_distance=self.max_distance,
                )
                return jnp.moveaxis(self.table[buckets_bts], -1, 1)
            case "transformer_xl":
                shifted_bthk = q_bthk.astype(jnp.float32) + self.shift_hk.astype(jnp.float32)
                scores_bhtz = jnp.einsum(
                    "bthk,zhk->bhtz",
                    shifted_bthk.astype(self.table.dtype),
                    self.table,
                    preferred_element_type=jnp.float32,
                )
                # Clipped distances are of masked keys: later ones, and those beyond the table.
                distance_bts = jnp.clip(-relative_bts, 0, len(self.table) - 1)
                return jnp.take_along_axis(scores_bhtz, distance_bts[:, None], axis=3)
        raise ValueError(f"unknown scheme {self.scheme!r}")


jax.tree_util.register_dataclass(
    ScoreBias, ["table", "shift_hk"], ["scheme", "bidirectional", "max_distance"]
)
