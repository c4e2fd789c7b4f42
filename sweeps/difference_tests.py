"""Tests of the difference between two variants over their seeds: paired, or Welch's."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
PAIRED, WELCH = "paired t", "Welch t"


@dataclasses.dataclass(frozen=True)
class Difference:
    """How a variant differs from the baseline in one metric."""

    mean: float | None  # variant minus baseline
    low: float | None  # of the confidence interval
    high: float | None
    p_value: float | None
    p_holm: float | None  # corrected for the number of variants that are compared
    n: int  # pairs, or the smaller number of seeds
    test: str  # PAIRED, WELCH, or "" without a test
    note: str  # why there is no interval or no p-value


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and the sample standard deviation; None where there are too few values."""
    if not len(values):
        return None, None
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else None


def difference(
    variant: Mapping[int, float], baseline: Mapping[int, float], *, paired: bool
) -> Difference:
    """Compares the values of a variant with those of the baseline, both by seed.

    Paired: only seeds of both count, and the test is of their differences. That needs runs that saw
    the same examples in the same order. Otherwise it is Welch's test, which does not assume equal
    variances.
    """
    if paired:
        seeds = [seed for seed in variant if seed in baseline]
        ours, theirs = [variant[s] for s in seeds], [baseline[s] for s in seeds]
    else:
        ours, theirs = list(variant.values()), list(baseline.values())
    n = min(len(ours), len(theirs))
    if not n:
        return _untested(None, 0, "no seeds of both" if paired else "no results of both")
    ours_n, theirs_n = np.asarray(ours, float), np.asarray(theirs, float)
    if not (np.isfinite(ours_n).all() and np.isfinite(theirs_n).all()):
        return _untested(None, n, "values that are not finite")
    mean = float(ours_n.mean() - theirs_n.mean())
    if n < 2:
        return _untested(mean, n, "n=1: no interval")
    spread = np.ptp(ours_n - theirs_n) if paired else max(np.ptp(ours_n), np.ptp(theirs_n))
    if spread <= 1e-12 * max(abs(ours_n).max(), abs(theirs_n).max()):
        what = "differences" if paired else "values"
        return _untested(mean, n, f"{what} do not vary between seeds: no test")
    with warnings.catch_warnings():
        # SciPy warns if all values of a variant are equal. Welch's formula holds without variance.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        if paired:
            result = stats.ttest_rel(ours_n, theirs_n)
        else:
            result = stats.ttest_ind(ours_n, theirs_n, equal_var=False)
    interval = result.confidence_interval(CONFIDENCE)
    return Difference(
        mean=mean,
        low=float(interval.low),
        high=float(interval.high),
        p_value=float(result.pvalue),
        p_holm=None,
        n=n,
        test=PAIRED if paired else WELCH,
        note="",
    )


def _untested(mean: float | None, n: int, note: str) -> Difference:
    return Difference(mean, None, None, None, None, n, "", note)


def with_holm(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same differences with p-values that Holm's method corrects for their number.

    The k-th smallest of m p-values is multiplied by m - k + 1, and none is below the one before.
    """
    tested = {name: each.p_value for name, each in differences.items() if each.p_value is not None}
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(tested, key=tested.__getitem__)):
        largest = max(largest, min(1.0, (len(tested) - place) * tested[name]))
        corrected[name] = largest
    return {
        name: dataclasses.replace(each, p_holm=corrected.get(name))
        for name, each in differences.items()
    }


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of the confidence interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    deviation = float(np.std(values, ddof=1))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * deviation / math.sqrt(len(values))
