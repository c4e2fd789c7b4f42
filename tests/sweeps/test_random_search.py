"""Random search: ranges, seeded trials, and what is refused."""

import math

import numpy as np
import pytest

from experiment.schema import ConfigError
from sweeps.random_search import parse_search, trial_variants

RANGES = "optimizer.learning_rate=log(1e-4,1e-2);model.dropout_residual=uniform(0,0.3);"
RANGES += "model.heads=int(1,4);optimizer.name=adamw,lion"


def test_trials_are_in_their_ranges_and_spread_over_them():
    trials = trial_variants(parse_search(RANGES), 400, seed=0)
    assert list(trials)[:2] == ["trial-000", "trial-001"]
    rates = np.array([float(each["optimizer.learning_rate"]) for each in trials.values()])
    assert rates.min() >= 1e-4 and rates.max() <= 1e-2
    # Uniform in the logarithm: half of them below the geometric mean.
    assert abs((rates < 1e-3).mean() - 0.5) < 0.1
    assert abs((rates < 10**-3.5).mean() - 0.25) < 0.1
    drops = np.array([float(each["model.dropout_residual"]) for each in trials.values()])
    assert drops.min() >= 0 and drops.max() <= 0.3 and abs(drops.mean() - 0.15) < 0.02
    heads = [each["model.heads"] for each in trials.values()]
    assert set(heads) == {"1", "2", "3", "4"}
    assert {each["optimizer.name"] for each in trials.values()} == {"adamw", "lion"}


def test_trials_repeat_and_more_of_them_begin_with_the_same():
    ranges = parse_search(RANGES)
    few, more = trial_variants(ranges, 3, seed=7), trial_variants(ranges, 9, seed=7)
    assert list(more.items())[:3] == list(few.items())
    assert trial_variants(ranges, 3, seed=8) != few
    assert len({tuple(each.values()) for each in more.values()}) == 9


def test_a_sampled_number_reads_back_exactly():
    for each in trial_variants(parse_search(RANGES), 50, seed=0).values():
        rate = each["optimizer.learning_rate"]
        assert f"{float(rate):.4g}" == rate and math.isfinite(float(rate))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model.heads=logg(1,2)", "logg is not one of: log, uniform, int"),
        ("model.heads=log(1)", "needs two numbers, such as log"),
        ("model.heads=uniform(2,1)", "the first bound must be below"),
        ("model.heads=log(0,1)", "log needs bounds above 0"),
        ("model.heads=int(1,2.5)", "int needs whole numbers"),
        ("seed=int(0,4)", "seed cannot be searched"),
        ("", "--search is empty"),
    ],
)
def test_what_cannot_be_sampled_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        parse_search(text)


def test_no_trials_are_refused():
    with pytest.raises(ConfigError, match="--trials=0"):
        trial_variants(parse_search("model.heads=1,2"), 0, seed=0)
