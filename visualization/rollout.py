"""Attention rollout: how much of each input token reaches each position (Abnar & Zuidema, 2020)."""

import numpy as np

RESIDUAL = 0.5  # the share of a layer's output that comes through the residual connection


def attention_rollout(weights_lhts: np.ndarray, residual: float = RESIDUAL) -> np.ndarray:
    """The product over layers of the heads' mean weights, (T, T).

    Each layer is mixed with the identity, by default half and half, for the residual connection,
    and its rows are divided by their sums. A query that sees no key passes on itself alone; without
    a residual connection, nothing.
    """
    positions = weights_lhts.shape[-1]
    rollout_ts = np.eye(positions)
    for weights_hts in weights_lhts.astype(np.float64):
        mixed_ts = (1 - residual) * weights_hts.mean(axis=0) + residual * np.eye(positions)
        total_t1 = mixed_ts.sum(axis=-1, keepdims=True)
        rollout_ts = mixed_ts / np.where(total_t1 > 0, total_t1, 1.0) @ rollout_ts
    return rollout_ts.astype(np.float32)
