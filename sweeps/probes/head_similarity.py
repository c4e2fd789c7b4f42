"""How different the heads of a layer are: the Jensen-Shannon divergence between pairs of heads.

It is 0 for heads with the same weights and log 2, in nats, for heads that share no key.
"""

import itertools

import numpy as np

from experiment.sections import Experiment
from sweeps.probes.attention_by_layer import (
    LayerWeights,
    attention_problem,
    keys_of,
    layer_weights,
    means_by_layer,
)
from sweeps.probes.probe import Probe, ProbedRun
from visualization.head_summaries import entropies

PREFIX = "divergence/"


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): it has no pairs of heads."""
    if experiment.model.heads < 2:
        return "model.heads=1 has no pairs"
    return attention_problem(experiment)


def compute(probed: ProbedRun) -> dict[str, float]:
    """Means over pairs of heads and over the queries that see two keys or more."""
    layers = layer_weights(probed, probed.run.params, probed.eval_batch())
    means = means_by_layer(layers, divergence)
    return {f"{PREFIX}{name}": value for name, value in means.items()}


def divergence(layer: LayerWeights) -> float:
    """The mean over pairs of heads and over queries."""
    entropy_ht = entropies(layer.weights_hts)
    found = []
    for one, other in itertools.combinations(range(len(entropy_ht)), 2):
        middle_1ts = (layer.weights_hts[one] + layer.weights_hts[other])[None] / 2
        found.append(entropies(middle_1ts)[0] - (entropy_ht[one] + entropy_ht[other]) / 2)
    return float(np.mean(found))


PROBE = Probe(compute, problem, keys=keys_of(PREFIX))
