"""Searches, with a trainer that does not train: who goes on, budgets, and what is refused."""

import dataclasses
import json
import math
import sys
from importlib.util import find_spec

import pytest

from experiment.schema import ConfigError
from sweeps.job_devices import JobDevices
from sweeps.search_job import SearchSpec, run_search
from sweeps.sweep_job import SweepJob
from sweeps.timed_run import StepTime
from tests.scripts import ROOT
from tests.sweeps.fake_trainer import METRIC
from tests.sweeps.test_runner import starts

SPEC = SearchSpec(
    ranges="optimizer.learning_rate=log(1e-5,1e-1)",
    trials=4,
    seed=1,
    halving=2,
    budget_steps=0,
    budget_minutes=0,
)
COMMON = {"steps": 800, "model.width": 16, "model.encoder_layers": 1}


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def search(sweep, spec=SPEC, common=COMMON, notes=None):
    sweep.mkdir(exist_ok=True)
    trainer = (sys.executable, "-m", "tests.sweeps.fake_trainer")
    job = SweepJob(sweep, trainer, (JobDevices(), JobDevices()), lambda count: 0)
    study = spec.study("configs/digits.py", ())
    end, text, planned = run_search(job, spec, study, common, (notes or []).append)
    return end, text, planned


def distance(planned, name):
    """How far the learning rate of a trial is from the best one."""
    overrides = planned.record.variants[name.removesuffix("-seed0")].overrides
    return abs(math.log10(float(overrides["optimizer.learning_rate"])) + 3)


def test_halving_trains_the_best_trials_longest_and_a_rerun_starts_nothing(tmp_path):
    end, text, planned = search(tmp_path)
    assert not end.failed and planned.record.metrics == (METRIC,)
    by_distance = sorted(planned.record.cells, key=lambda name: distance(planned, name))
    begun = [(name, int(steps)) for name, steps, _ in starts(tmp_path)]
    # 4 trials up to 200, the best 2 of them up to 400, the best one up to 800.
    assert sorted(begun) == sorted(
        [(name, 200) for name in by_distance]
        + [(name, 400) for name in by_distance[:2]]
        + [(by_distance[0], 800)]
    )
    assert begun[-1] == (by_distance[0], 800)
    best = by_distance[0].removesuffix("-seed0")
    assert text.splitlines()[2].startswith(best)
    assert f"best: {best} of 4, by one seed" in text
    # All rungs have the schedule of the full length.
    config = json.loads((tmp_path / "cells" / by_distance[-1] / "config.json").read_text())
    assert (config["steps"], config["optimizer"]["decay_steps"]) == (200, 800)
    pages = [tmp_path / name for name in ("sweep.html", "table.csv", "table.json")]
    assert not find_spec("plotly") or by_distance[0] in pages[0].read_text()
    before = [path.read_bytes() for path in pages[1:]]
    _, again, _ = search(tmp_path)
    assert [path.read_bytes() for path in pages[1:]] == before
    assert again == text and len(starts(tmp_path)) == len(begun)


def test_a_search_may_not_change(tmp_path):
    spec = dataclasses.replace(SPEC, trials=1, halving=0)
    search(tmp_path, spec)
    with pytest.raises(ConfigError, match="seed: 1 -> 2"):
        search(tmp_path, dataclasses.replace(spec, seed=2))
    # Without halving, more trials are more of the same.
    _, text, _ = search(tmp_path, dataclasses.replace(spec, trials=2))
    assert "trial-001" in text and len(starts(tmp_path)) == 2
    with pytest.raises(ConfigError, match="halving: 0 -> 2"):
        search(tmp_path, SPEC)


def test_budgets_decide_about_steps():
    spec = dataclasses.replace(SPEC, budget_steps=4000)

    def never():
        raise AssertionError("nothing has to be measured")

    # 4 * r + 2 * r + 1 * 2 r = 8 r, of which the last rung has 4 r.
    assert spec.steps(123, never) in range(2000, 2004)
    assert dataclasses.replace(SPEC, halving=0, budget_steps=4000).steps(123, never) == 1000
    assert SPEC.steps(123, never) == 123
    # 7 starts of 30 s leave 390 s of 10 minutes: 3,900 steps of 0.1 s.
    spec = dataclasses.replace(SPEC, budget_minutes=10.0)
    assert spec.steps(800, lambda: StepTime(0.1, 30.0)) in range(1948, 1952)
    with pytest.raises(ConfigError, match=r"used up by 7 starts of 100 s"):
        spec.steps(800, lambda: StepTime(0.1, 100.0))


@pytest.mark.parametrize(
    ("changes", "common", "reason"),
    [
        (dict(budget_steps=10, budget_minutes=1.0), {}, "exclude each other"),
        (dict(budget_steps=-1), {}, "must be above 0"),
        (dict(ranges="steps=int(1,9)"), {}, "leave steps out"),
        (dict(budget_steps=4000), {"steps": 9}, r"leave --config.steps out"),
        (dict(ranges="optimizer.learning_rat=log(1e-3,1e-2)"), {}, "Did you mean 'learning_rate'"),
        (dict(ranges="optimizer.learning_rate=uniform(-1,-0.1)"), {}, "must be above 0"),
    ],
)
def test_bad_searches_are_refused(tmp_path, changes, common, reason):
    with pytest.raises(ConfigError, match=reason):
        search(tmp_path, dataclasses.replace(SPEC, **changes), common)
    assert not starts(tmp_path)
