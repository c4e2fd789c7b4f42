"""The fixed context vector of the first encoder-decoders, in place of cross-attention.

The vector is the mean of the encoder's hidden states. The decoder gets it at every token, added to
the token's embedding (Cho et al., 2014, also give it to every step). So everything that the decoder
knows of its source, however long, is one vector.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from model.config import TransformerConfig
from model.layers import Dense
from model.masks import MaskSpec


class ContextVector(nn.Module):
    """A dense layer on the mean hidden state of each token's source."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, source_bsd: Array, mask_spec: MaskSpec) -> Array:
        """Returns (B, T, D). A token of a packed row reads the source of its own segment."""
        mask_bts = mask_spec.mask_b1ts()[:, 0].astype(jnp.float32)
        weights_bts = mask_bts / jnp.maximum(mask_bts.sum(axis=-1, keepdims=True), 1.0)
        mean_btd = jnp.einsum("bts,bsd->btd", weights_bts, source_bsd.astype(jnp.float32))
        dense = Dense(self.config, (self.config.width,), ("width", "mixed"), name="dense")
        return dense(mean_btd)
