"""Summaries of heads, against plain loops and heads whose habits are known."""

import dataclasses
import math

import numpy as np
import pytest

from tests.visualization import example_views
from visualization import head_summaries
from visualization.model_view import ModelView


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def looped(attention, view, layer: int, head: int) -> dict[str, float]:
    """All summaries of one head, one pair of query and key after the other."""
    found: dict[str, list[float]] = {name: [] for name in head_summaries.LABELS}
    found |= {"entropy": [], "distance": []}
    queries, keys = len(attention.queries), len(attention.keys)
    for t in range(queries):
        row = [float(w) for w in attention.weights_lhts[layer, head, t]]
        visible = [s for s in range(keys) if attention.visible_lts[layer, t, s]]
        if len(visible) < 2:
            continue
        entropy = -sum(w * math.log(w) for w in row if w > 0)
        found["entropy"].append(entropy)
        found["evenness"].append(entropy / math.log(len(visible)))
        own = t + keys - queries
        targets = {"first": [0]}
        special = [s for s in visible if attention.keys[s] in view.special_tokens]
        targets["special"] = special
        if attention.name != "cross":
            targets |= {"previous": [own - 1], "itself": [own], "following": [own + 1]}
            found["distance"].append(sum(w * abs(s - own) for s, w in enumerate(row)))
        for name, places in targets.items():
            if any(s in visible for s in places):
                found[name].append(sum(row[s] for s in places if 0 <= s < keys))
    return {name: mean(values) for name, values in found.items()}


@pytest.mark.parametrize("which", ["classifier", "decoder", "encoder", "cross", "memory"])
def test_summaries_are_those_of_plain_loops(which):
    view = {
        "classifier": example_views.classifier_view,
        "decoder": example_views.decoder_view,
    }.get(which, example_views.translation_view)()
    if which == "memory":  # more keys than queries, in one stack
        keys = tuple("abcdefg")
        attention = example_views.attention("decoder", keys[3:], keys)
        view = ModelView("memory", (), (attention,), special_tokens=frozenset("ag"))
    attention = view.maps[{"cross": 2}.get(which, 0)]
    summaries = head_summaries.summarize(attention, view)
    layers, heads = attention.weights_lhts.shape[:2]
    for layer in range(layers):
        for head in range(heads):
            for name, expected in looped(attention, view, layer, head).items():
                got = getattr(summaries, name)[layer, head]
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_heads_are_called_after_what_they_do():
    view = example_views.decoder_view()
    summaries = head_summaries.summarize(view.maps[0], view)
    labels = [summaries.labels(0, head) for head in range(6)]
    assert "previous-token" in labels[0] and "first-token" not in labels[0]
    assert labels[1] == ["first-token"]
    assert labels[2] == ["broad"]
    assert labels[3] == []
    assert labels[4] == ["same-token"]


def test_rows_without_a_choice_do_not_count():
    # The first query of a causal model sees only itself, which does not describe the head.
    attention = example_views.attention("decoder", ("a", "b"), causal=True, layers=1, heads=1)
    weights = np.array([[[[1, 0], [0.25, 0.75]]]], np.float32)
    attention = dataclasses.replace(attention, weights_lhts=weights)
    summaries = head_summaries.summarize(attention, ModelView("two", (), (attention,)))
    assert summaries.itself[0, 0] == 0.75
    assert summaries.first[0, 0] == 0.25
    (row,) = summaries.rows((7,))
    assert row["layer"] == 7
    assert row["special"] is None  # no special token is there
    assert row["following"] is None  # it is masked


def test_distances_between_patches_are_those_of_the_image():
    view = example_views.image_view()
    attention = view.maps[0]
    rows, columns = view.patch_grid
    expected = []
    for query in range(rows * columns):
        weights = attention.weights_lhts[1, 2, 1 + query, 1:].astype(np.float64)
        far = [
            math.dist(divmod(query, columns), divmod(key, columns)) for key in range(rows * columns)
        ]
        expected.append((weights * far).sum() / weights.sum())
    got = head_summaries.summarize(attention, view).distance[1, 2]
    np.testing.assert_allclose(got, np.mean(expected), rtol=1e-5)


def test_shares_of_attention_times_gradient_sum_to_one():
    view = example_views.classifier_view()
    attention = view.maps[0]
    shares = head_summaries.summarize(attention, view).gradient
    np.testing.assert_allclose(shares.sum(), 1)
    sizes = np.abs(attention.weights_lhts * attention.gradients_lhts).sum((2, 3))
    np.testing.assert_allclose(shares[1] / shares[0], sizes[1] / sizes[0], rtol=1e-5)
