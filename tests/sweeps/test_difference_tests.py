"""Tests of differences, against SciPy, against textbook formulas, and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from sweeps.difference_tests import (
    PAIRED,
    WELCH,
    difference,
    half_interval,
    mean_and_deviation,
    with_holm,
)

A = {0: 3.1, 1: 2.7, 2: 3.6, 3: 3.0}
B = {0: 2.9, 1: 2.2, 2: 3.5, 3: 2.4}


def test_paired_by_hand():
    # Differences 1, 2, 3: mean 2, sd 1, standard error 1/sqrt(3); t(0.975, 2) = 4.30265.
    found = difference({0: 2.0, 1: 4.0, 2: 6.0}, {2: 3.0, 0: 1.0, 1: 2.0}, paired=True)
    assert found.mean == 2 and found.test == PAIRED and found.n == 3
    half = 4.30265 / math.sqrt(3)
    np.testing.assert_allclose((found.low, found.high), (2 - half, 2 + half), rtol=1e-5)
    # With 2 degrees of freedom, p = 1 - t / sqrt(t^2 + 2); t = 2 sqrt(3).
    np.testing.assert_allclose(found.p_value, 1 - math.sqrt(12 / 14), rtol=1e-12)


def test_paired_is_a_one_sample_test_of_the_differences():
    found = difference(A, B, paired=True)
    ours = stats.ttest_1samp([A[seed] - B[seed] for seed in A], 0)
    np.testing.assert_allclose(found.p_value, ours.pvalue, rtol=1e-12)
    np.testing.assert_allclose((found.low, found.high), ours.confidence_interval(0.95))


def test_welch_by_its_formula():
    ours, theirs = list(A.values()), [*B.values(), 9.0]
    found = difference(A, dict(enumerate(theirs)), paired=False)
    va, vb = np.var(ours, ddof=1) / len(ours), np.var(theirs, ddof=1) / len(theirs)
    freedom = (va + vb) ** 2 / (va**2 / (len(ours) - 1) + vb**2 / (len(theirs) - 1))
    mean, error = np.mean(ours) - np.mean(theirs), math.sqrt(va + vb)
    half = stats.t.ppf(0.975, freedom) * error
    np.testing.assert_allclose((found.low, found.high), (mean - half, mean + half), rtol=1e-10)
    p = 2 * stats.t.sf(abs(mean) / error, freedom)
    np.testing.assert_allclose(found.p_value, p, rtol=1e-10)
    assert found.test == WELCH and found.n == 4


def test_a_side_without_variation_has_a_variance_of_zero():
    values = {0: 0.5, 1: 0.7, 2: 0.9}
    found = difference(values, {0: 1.0, 1: 1.0, 2: 1.0}, paired=False)
    alone = stats.ttest_1samp(list(values.values()), 1.0)
    assert found.p_value == pytest.approx(alone.pvalue)
    assert (found.low, found.high) == pytest.approx(
        tuple(limit - 1.0 for limit in alone.confidence_interval())
    )


def test_pairs_are_made_by_seed_and_only_of_seeds_of_both():
    found = difference(
        {1: 5.0, 7: 2.0, 2: 8.0, 3: 1.0}, {3: 0.5, 2: 6.0, 1: 4.0, 9: 0.0}, paired=True
    )
    assert found.n == 3
    assert found.mean == pytest.approx((1.0 + 2.0 + 0.5) / 3)


def test_one_seed_has_a_difference_but_no_interval():
    found = difference({0: 2.0}, {0: 1.5}, paired=True)
    assert (found.mean, found.low, found.p_value, found.test) == (0.5, None, None, "")
    assert found.note == "n=1: no interval"
    assert difference({0: 2.0, 1: 3.0}, {0: 1.5}, paired=False).note == "n=1: no interval"


def test_what_cannot_be_tested_says_why():
    assert difference({0: 1.0}, {1: 1.0}, paired=True).note == "no seeds of both"
    assert difference({}, {1: 1.0}, paired=False).note == "no results of both"
    # 0.1 + 0.2 and the like leave a rounding error that is no variation.
    same = difference({0: 0.3, 1: 0.6}, {0: 0.1 + 0.1, 1: 0.5}, paired=True)
    assert same.p_value is None and "differences do not vary" in same.note
    assert "not finite" in difference({0: math.nan, 1: 1.0}, {0: 1.0, 1: 2.0}, paired=True).note


def test_holm_by_hand():
    # 0.01 * 3, then 0.03 * 2, then max(0.06, 0.04 * 1).
    values = {"a": 0.04, "b": 0.01, "c": 0.03}
    differences = {name: difference(A, B, paired=True) for name in (*values, "d")}
    import dataclasses

    differences = {
        name: dataclasses.replace(each, p_value=values.get(name))
        for name, each in differences.items()
    }
    found = {name: each.p_holm for name, each in with_holm(differences).items()}
    assert found == {
        "a": pytest.approx(0.06), "b": pytest.approx(0.03), "c": pytest.approx(0.06), "d": None,
    }  # fmt: skip


def test_the_interval_of_a_mean():
    values = [1.0, 2.0, 4.0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert half_interval(values) == pytest.approx((high - low) / 2)
    assert half_interval([1.0]) is None
    assert mean_and_deviation(values) == (pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)))
    assert mean_and_deviation([1.0]) == (1.0, None) and mean_and_deviation([]) == (None, None)
