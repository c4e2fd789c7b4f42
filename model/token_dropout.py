"""ESM's token dropout: masked tokens have no embedding, and the others are scaled to balance it."""

import jax
import jax.numpy as jnp
from jax import Array

# The share of masked tokens in ESM's training: 15% are predicted, of which 80% are masked.
MASKED_IN_TRAINING = 0.15 * 0.8


def drop_masked(x_btd: Array, is_masked_bt: Array, segments_bt: Array) -> Array:
    """Returns embeddings that are 0 at masked tokens, and scaled elsewhere.

    As with dropout, the sum of a text's embeddings keeps its size: a text with the share of masked
    tokens of training is not scaled by much, and one without any is scaled down. Texts that share a
    row, with their own `segments_bt`, each have their own scale.
    """
    count = jax.vmap(
        lambda values_t, segments_t: jax.ops.segment_sum(
            values_t, segments_t, num_segments=x_btd.shape[1] + 1
        )[segments_t]
    )
    segments_bt = jnp.broadcast_to(segments_bt, is_masked_bt.shape)
    tokens_bt = count(jnp.ones(is_masked_bt.shape, jnp.float32), segments_bt)
    # At least one, so that a text of masks alone has no infinite scale.
    remaining_bt = jnp.maximum(count((~is_masked_bt).astype(jnp.float32), segments_bt), 1.0)
    scale_bt = jnp.where(is_masked_bt, 0.0, (1 - MASKED_IN_TRAINING) * tokens_bt / remaining_bt)
    return x_btd * scale_bt[..., None].astype(x_btd.dtype)
