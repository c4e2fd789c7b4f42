"""Successive halving: rungs, budgets, and who goes on."""

import math

import pytest

from experiment.schema import ConfigError
from sweeps.successive_halving import (
    Rung,
    make_rungs,
    promote,
    starts,
    steps_for_budget,
    total_steps,
)


def test_rungs_by_hand():
    assert make_rungs(9, 3, 900) == [Rung(9, 100), Rung(3, 300), Rung(1, 900)]
    assert make_rungs(16, 3, 900) == [Rung(16, 100), Rung(5, 300), Rung(1, 900)]
    assert make_rungs(8, 2, 80) == [Rung(8, 10), Rung(4, 20), Rung(2, 40), Rung(1, 80)]
    assert make_rungs(2, 3, 900) == [Rung(2, 900)]
    assert make_rungs(16, 0, 900) == [Rung(16, 900)]


def test_a_trial_continues_so_its_steps_count_once():
    # 9 * 100 + 3 * 200 + 1 * 600
    assert total_steps(make_rungs(9, 3, 900)) == 2100
    assert starts(make_rungs(9, 3, 900)) == 13


@pytest.mark.parametrize(("trials", "factor"), [(16, 0), (9, 3), (16, 3), (8, 2)])
def test_the_budget_is_used_and_not_exceeded(trials, factor):
    for budget in (1_000, 12_345):
        steps = steps_for_budget(trials, factor, budget)
        assert total_steps(make_rungs(trials, factor, steps)) <= budget
        assert total_steps(make_rungs(trials, factor, steps + 1)) > budget


def test_a_budget_that_is_too_small_is_refused():
    for trials, factor, budget in ((16, 0, 15), (27, 3, 40)):
        with pytest.raises(ConfigError, match="too small"):
            steps_for_budget(trials, factor, budget)
    with pytest.raises(ConfigError, match="--halving=1"):
        make_rungs(9, 1, 100)


def test_the_best_go_on():
    values = {"a": 0.5, "b": math.nan, "c": 0.9, "d": 0.5, "e": 0.1}
    assert promote(values, 3, "max") == ["c", "a", "d"]  # of equal ones, the first
    assert promote(values, 2, "min") == ["e", "a"]
    assert promote(values, 5, "max") == ["c", "a", "d", "e"]  # never one without a value
    assert promote({"a": math.inf}, 1, "max") == []
