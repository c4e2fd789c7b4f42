"""How much is pruned when, against the published formula."""

import dataclasses

import numpy as np
import pytest

from tests.training.examples import PRUNE
from training.pruning_schedule import prune_schedule


def schedule(steps=1000, **changes):
    return prune_schedule(dataclasses.replace(PRUNE, **changes), steps)


@pytest.mark.parametrize(("begin", "end", "every"), [(10, 110, 10), (1, 100, 30), (5, 6, 100)])
def test_shares_are_zhu_and_guptas_formula(begin, end, every):
    found = schedule(method="magnitude", share=0.8, begin_step=begin, end_step=end, every=every)
    expected = {}
    step = begin
    while step < end:
        expected[step] = 0.8 + (0.0 - 0.8) * (1 - (step - begin) / (end - begin)) ** 3
        step += every
    expected[end] = 0.8
    assert list(found.steps) == list(expected)
    np.testing.assert_allclose(found.shares, list(expected.values()), rtol=1e-12, atol=1e-12)
    assert list(found.counts(1000)) == [0, *(round(1000 * s) for s in expected.values())]


def test_equal_first_and_last_steps_prune_at_once():
    found = schedule(method="magnitude", share=0.3, begin_step=7, end_step=7)
    assert (list(found.steps), list(found.shares)) == ([7], [0.3])


def test_the_last_step_is_half_of_the_run_by_default():
    assert schedule(method="heads", share=0.5, every=100).steps[-1] == 500
    assert schedule(method="heads", share=0.5, begin_step=800).steps[-1] == 800


def test_two_of_four_is_pruned_at_once():
    found = schedule(method="2:4", begin_step=20)
    assert (list(found.steps), list(found.shares)) == ([20], [0.5])
