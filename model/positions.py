"""Position schemes as pure functions of integer positions.

`sinusoidal` and `learned` are added to the embeddings, `rope` turns queries and keys, `alibi`,
`t5_bias` and `transformer_xl` are added to the attention scores. The relative ones apply to
self-attention alone.
"""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    from model.config import TransformerConfig


def sinusoidal(positions_bt: Array, width: int) -> Array:
    """The 2017 paper's waves: sin and cos of t / 10000^(2i/D), (B, T, D) in float32.

    All sines come before all cosines, as in Marian's checkpoints; the paper interleaves them,
    which is the same function up to a fixed reordering of the columns.
    """
    frequencies = 10_000.0 ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    angles = positions_bt[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rope_frequencies(config: "TransformerConfig") -> np.ndarray:
    """The angle by which each pair of columns turns from one position to the next, (K / 2).

    Scaling slows the turns down so that longer texts look like those of training: `linear` all of
    them by the factor; `ntk` the slowest by the factor, the fastest not at all and those between
    by a power of it, which is what a larger theta does; `llama3` those that make fewer than
    `rope_low_frequency` turns in the original length, none that make more than
    `rope_high_frequency`, and those between in part.
    """
    size = config.head_size
    exponents = np.arange(0, size, 2, dtype=np.float64) / size
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
    return frequencies.astype(np.float32)


def rope(x_bthk: Array, positions_bt: Array, frequencies: np.ndarray) -> Array:
    """Rotates each head's vector by its position, pairing column i with column i + K/2.

    This is the half-split convention of Llama's published weights. Angles are computed in
    float32 whatever the type of `x`: bfloat16 cannot tell position 257 from 258.
    """
    angles = positions_bt[..., None, None].astype(jnp.float32) * frequencies
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x_bthk.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_bthk.dtype)


def alibi_slopes(heads: int) -> np.ndarray:
    """The ALiBi paper's slopes: 2^(-8/H), 2^(-16/H), ... for a power of two of heads.

    Other numbers take the slopes of the power of two below, then every other slope of the one
    above, as the authors do.
    """
    below = 2 ** int(np.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    if below < heads:
        slopes = np.concatenate([slopes, alibi_slopes(2 * below)[0::2][: heads - below]])
    return slopes.astype(np.float32)


def t5_bucket(
    relative_bts: Array, *, bidirectional: bool, buckets: int, max_distance: int
) -> Array:
    """T5's bucket of each relative position (key minus query).

    Half of the buckets are exact distances, the rest grow logarithmically up to `max_distance`;
    two-sided attention gives half of all buckets to the keys that come after the query.
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
    """A table, not arithmetic on the device: an accelerator's fast log may round to a neighbour."""
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    log_ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = log_ratio / np.log(max_distance / exact).astype(np.float32) * (buckets - exact)
    far = np.minimum(exact + far.astype(np.int32), buckets - 1)
    return np.where(distance < exact, distance, far).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class ScoreBias:
    """What relative positions add to the scores, not yet written out for every pair.

    Kinds of attention ask for the stretch that they are at; gradients of `table` and `shift_hk`
    add up over all of them.
    """

    scheme: str  # alibi | t5_bias | transformer_xl
    # Of each head: alibi's slope (H); t5's value for each bucket (buckets, H); Transformer-XL's
    # key for each distance (distances, H, K)
    table: Array
    shift_hk: Array | None = None  # transformer_xl: added to queries before they meet the table
    bidirectional: bool = False  # t5_bias only, as max_distance
    max_distance: int = 0

    def __call__(self, q_bthk: Array, query_positions_bt: Array, key_positions_bs: Array) -> Array:
        """(B, H, T, S) in float32; `q_bthk` as it enters the scores, scale and all."""
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
                # What lies ahead is never seen, and so far behind as the table ends neither.
                distance_bts = jnp.clip(-relative_bts, 0, len(self.table) - 1)
                return jnp.take_along_axis(scores_bhtz, distance_bts[:, None], axis=3)
        raise ValueError(f"unknown scheme {self.scheme!r}")


jax.tree_util.register_dataclass(
    ScoreBias, ["table", "shift_hk"], ["scheme", "bidirectional", "max_distance"]
)
