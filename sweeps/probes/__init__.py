"""Probes: numbers of a finished run that training does not log. One line for each.

Their values are metrics of a sweep, named probe/NAME/KEY.
"""

from sweeps.probes import (
    attention_entropy,
    gradient_by_distance,
    gradient_by_layer,
    head_similarity,
    latency,
    score_by_length,
    score_longer_rows,
)

PROBES = {
    "attention_entropy": attention_entropy.PROBE,
    "gradient_by_distance": gradient_by_distance.PROBE,
    "gradient_by_layer": gradient_by_layer.PROBE,
    "head_similarity": head_similarity.PROBE,
    "latency": latency.PROBE,
    "score_by_length": score_by_length.PROBE,
    "score_longer_rows": score_longer_rows.PROBE,
}
