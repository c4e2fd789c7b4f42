"""Attention rollout: how much of each input token reaches each position (Abnar & Zuidema, 2020)."""

import numpy as np

RESIDUAL = 0.5  # the share of a layer's output that comes through the residual connection


def attention_rollout(weights_lhts: np.ndarray) -> np.ndarray:
    """The product over layers of the heads' mean weights, (T, T).

    Each layer is mixed half and half with the identity, for the residual connection, and its rows
    are divided by their sums. A query that sees no key passes on itself alone.
    """
    positions = weights_lhts.shape[-1]
    rollout_ts = np.eye(positions)
    for weights_hts in weights_lhts.astype(np.float64):
        mixed_ts = (1 - RESIDUAL) * weights_hts.mean(axis=0) + RESIDUAL * np.eye(positions)
        rollout_ts = mixed_ts / mixed_ts.sum(axis=-1, keepdims=True) @ rollout_ts
    return rollout_ts.astype(np.float32)
