"""Attention rollout against plain loops."""

import numpy as np

from visualization.rollout import attention_rollout


def by_loops(weights_lhts):
    layers, heads, length, _ = weights_lhts.shape
    flow = [[float(t == s) for s in range(length)] for t in range(length)]
    for layer in range(layers):
        mixed = []
        for t in range(length):
            row = [
                sum(weights_lhts[layer, h, t, s] for h in range(heads)) / heads
                for s in range(length)
            ]
            row = [0.5 * w + 0.5 * (t == s) for s, w in enumerate(row)]
            mixed.append([w / sum(row) for w in row])
        flow = [
            [sum(mixed[t][u] * flow[u][s] for u in range(length)) for s in range(length)]
            for t in range(length)
        ]
    return np.array(flow)


def test_rollout_is_the_product_of_layers():
    rng = np.random.default_rng(0)
    weights = rng.random((3, 2, 5, 5)).astype(np.float32) ** 3
    weights /= weights.sum(axis=-1, keepdims=True)
    found = attention_rollout(weights)
    np.testing.assert_allclose(found, by_loops(weights), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)
    assert found.dtype == np.float32


def test_a_query_without_keys_passes_on_itself():
    weights = np.zeros((2, 1, 3, 3), np.float32)
    weights[:, :, :2, :2] = 0.5
    np.testing.assert_array_equal(attention_rollout(weights)[2], [0, 0, 1])


def test_the_future_stays_out():
    weights = np.tril(np.ones((4, 3, 6, 6), np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    assert not np.triu(attention_rollout(weights), 1).any()


def test_without_residual_connections_rollout_is_the_product_of_mean_weights():
    rng = np.random.default_rng(1)
    weights = rng.random((3, 2, 5, 5)).astype(np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    weights[:, :, 4] = 0.0  # a query without keys has nothing to pass on
    first, second, third = weights.mean(axis=1).astype(np.float64)
    found = attention_rollout(weights, residual=0.0)
    mean = lambda m: m / np.maximum(m.sum(axis=-1, keepdims=True), 1e-30)  # noqa: E731
    np.testing.assert_allclose(found, mean(third) @ mean(second) @ mean(first), atol=1e-6)
    assert not found[4].any()
