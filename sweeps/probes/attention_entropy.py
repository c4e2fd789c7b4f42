"""The entropy of attention weights before and after training, in nats and as evenness.

Evenness is the entropy as a part of the largest one possible, the logarithm of the visible keys.
"""

import numpy as np

from sweeps.probes.attention_by_layer import (
    LayerWeights,
    attention_problem,
    keys_of,
    layer_weights,
    means_by_layer,
)
from sweeps.probes.probe import Probe, ProbedRun
from visualization.head_summaries import entropies


def compute(probed: ProbedRun) -> dict[str, float]:
    """Means over heads and over the queries that see two keys or more."""
    found, batch = {}, probed.eval_batch()
    for time, params in probed.params_by_time().items():
        layers = list(layer_weights(probed, params, batch))
        means = means_by_layer(layers, lambda each: entropies(each.weights_hts).mean())
        found |= {f"{time}/{name}": value for name, value in means.items()}
        means = means_by_layer(layers, _evenness)
        found |= {f"{time}/evenness/{name}": value for name, value in means.items()}
    return found


def _evenness(layer: LayerWeights) -> float:
    return (entropies(layer.weights_hts) / np.log(layer.visible_t)).mean()


PREFIXES = ("init/", "init/evenness/", "trained/", "trained/evenness/")
PROBE = Probe(
    compute, attention_problem, keys=tuple(key for each in PREFIXES for key in keys_of(each))
)
