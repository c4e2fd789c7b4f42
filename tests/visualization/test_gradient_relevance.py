"""Relevance by attention x gradient, against plain loops."""

import dataclasses

import numpy as np

from tests.visualization import example_views
from visualization.gradient_relevance import gradient_relevance


def test_relevance_is_that_of_plain_loops():
    attention = example_views.classifier_view(("a", "b", "c", "d")).maps[0]
    attention = dataclasses.replace(attention, gradients_lhts=1000 * attention.gradients_lhts)
    layers, heads, length, _ = attention.weights_lhts.shape
    relevance = [[float(t == s) for s in range(length)] for t in range(length)]
    for layer in range(layers):
        added = [[0.0] * length for _ in range(length)]
        for t in range(length):
            for middle in range(length):
                pairs = zip(
                    attention.weights_lhts[layer, :, t, middle],
                    attention.gradients_lhts[layer, :, t, middle],
                    strict=True,
                )
                mean = sum(max(float(w) * float(g), 0.0) for w, g in pairs) / heads
                for s in range(length):
                    added[t][s] += mean * relevance[middle][s]
        relevance = [[relevance[t][s] + added[t][s] for s in range(length)] for t in range(length)]
    expected = np.array(relevance) - np.eye(length)
    np.testing.assert_allclose(gradient_relevance(attention), expected, rtol=1e-4)


def test_there_is_no_relevance_without_gradients_or_across_stacks():
    encoder, _, cross = example_views.translation_view().maps
    assert gradient_relevance(encoder) is None
    cross = dataclasses.replace(cross, gradients_lhts=cross.weights_lhts)
    assert gradient_relevance(cross) is None
