"""Which tokens a classifier's answer rests on: attention weighted by the answer's gradient.

The rule is that of Chefer, Gur and Wolf (2021), "Generic Attention-model Explainability": the
positive part of weight x gradient, averaged over heads, is propagated through the layers.
"""

import numpy as np

from visualization.model_view import AttentionMap


def gradient_relevance(attention: AttentionMap) -> np.ndarray | None:
    """Returns the relevance (T, S) of keys for queries over the shown layers.

    The identity that the rule starts from is taken away again: a token's relevance for itself is
    only what attention adds. None without gradients, and for cross attention.
    """
    gradients = attention.gradients_lhts
    if gradients is None or len(attention.queries) != len(attention.keys):
        return None
    identity = np.eye(len(attention.queries), dtype=np.float64)
    relevance_ts = identity
    for weights_hts, gradients_hts in zip(attention.weights_lhts, gradients, strict=True):
        mean_ts = np.maximum(weights_hts * gradients_hts, 0).mean(0, dtype=np.float64)
        relevance_ts = relevance_ts + mean_ts @ relevance_ts
    return (relevance_ts - identity).astype(np.float32)
