"""Patterns of metrics: which names they stand for."""

import pytest

from sweeps.metric_patterns import expand, is_measured, matches

NAMES = (
    "a/layer_10",
    "a/layer_02",
    "a/layer_2x",
    "a/layer_0.5",
    "a/layer_",
    "b/layer_2",
    "a.layer_7",
)


def test_names_come_in_the_order_of_their_numbers():
    assert matches("a/layer_*", NAMES) == {"a/layer_0.5": 0.5, "a/layer_02": 2, "a/layer_10": 10}
    assert list(matches("a/layer_*", NAMES)) == ["a/layer_0.5", "a/layer_02", "a/layer_10"]


def test_patterns_are_replaced_in_place_and_names_occur_once():
    metrics = ("loss", "b/layer_*", "a/layer_10", "a/layer_*")
    expected = ["loss", "b/layer_2", "a/layer_10", "a/layer_0.5", "a/layer_02"]
    assert expand(metrics, NAMES) == expected


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("eval/n_8/loss", True),
        ("eval/n_*/loss", True),
        ("eval/m_*/loss", False),
        ("eval/n_9/loss", False),
        ("optim/anything_*", True),
        ("optim/anything", False),
    ],
)
def test_what_is_known_before_a_run(metric, expected):
    assert is_measured(metric, ["eval/n_8/loss"]) == expected
