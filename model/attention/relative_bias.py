"""T5's learned bias of scores, a module with the table of each bucket and head."""

import flax.linen as nn
import jax.numpy as jnp

from model.config import TransformerConfig
from model.positions import ScoreBias


class RelativeBias(nn.Module):
    """T5's learned bias for each head and bucket of relative positions."""

    config: TransformerConfig
    bidirectional: bool

    @nn.compact
    def __call__(self) -> ScoreBias:
        config = self.config
        table = self.param(
            "embedding",
            nn.with_logical_partitioning(
                nn.initializers.normal(config.init_std or config.base_width**-0.5),
                ("buckets", "heads"),
            ),
            (config.relative_buckets, config.heads),
            jnp.dtype(config.param_dtype),
        )
        return ScoreBias(
            "t5_bias",
            table.astype(jnp.float32),
            bidirectional=self.bidirectional,
            max_distance=config.relative_max_distance,
        )
