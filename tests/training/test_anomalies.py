"""A skipped step changes no bit of the state, and does not affect the next step."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.training.examples import make_batch, make_job
from training.anomalies import (
    NOT_FINITE,
    OK,
    SPIKE,
    STOP_ON_NONFINITE,
    detect_anomaly,
    init_anomalies,
    update_anomalies,
)

pytestmark = pytest.mark.usefixtures("default_compilation")

SKIPS = dataclasses.replace(STOP_ON_NONFINITE, nonfinite="skip", spike="skip", spike_window=4)
OBJECTIVE = "causal_lm"


@pytest.fixture(scope="module")
def job():
    model = dict(dropout_residual=0.1)
    return make_job(
        OBJECTIVE, make_batch(OBJECTIVE), model=model, optimizer=dict(ema_decay=0.9), failure=SKIPS
    )


def scaled(batch, by):
    """The same batch with its loss multiplied by a factor, which may be NaN."""
    weights = batch["weights"].copy()
    weights[0, 0] = by
    return {**batch, "weights": weights}


def contents(state):
    tree = jax.device_get((state.params, state.opt_state, state.ema))
    return [leaf.tobytes() for leaf in jax.tree.leaves(tree)]


def test_a_gradient_that_is_no_number_is_never_applied(job):
    batch = make_batch(OBJECTIVE)
    state, _ = job.run(job.start(), batch, 2)
    before = contents(state)
    for row in range(1, 4):
        state, metrics = job.step(state, scaled(batch, np.nan))
        assert metrics["failure/status"] == NOT_FINITE
        assert (metrics["failure/in_a_row"], metrics["failure/skipped"]) == (row, row)
        assert contents(state) == before
    state, metrics = job.step(state, batch)
    assert metrics["failure/status"] == OK
    assert (metrics["failure/in_a_row"], metrics["failure/skipped"]) == (0, 3)
    assert contents(state) != before
    assert state.step == 6


def test_the_learning_rate_is_that_of_the_update():
    """After a step that was skipped the optimizer is one update behind the steps."""
    batch = make_batch(OBJECTIVE)
    schedule = dict(schedule="linear", warmup_steps=10)
    job = make_job(OBJECTIVE, batch, optimizer=schedule, failure=SKIPS)
    state, skipped = job.step(job.start(), scaled(batch, np.nan))
    state, first = job.step(state, batch)
    _, second = job.step(state, batch)
    rates = [float(m["optim/learning_rate"]) for m in (skipped, first, second)]
    assert rates[0] == rates[1] < rates[2]


def test_a_job_that_does_not_skip_has_the_same_steps(job):
    batch = make_batch(OBJECTIVE)
    plain = make_job(
        OBJECTIVE, batch, model=dict(dropout_residual=0.1), optimizer=dict(ema_decay=0.9)
    )
    ours, losses = job.run(job.start(), batch, 3)
    theirs, expected = plain.run(plain.start(), batch, 3)
    assert losses == expected
    for mine, other in zip(contents(ours), contents(theirs), strict=True):
        assert mine == other


def statuses(losses, config=SKIPS):
    anomalies, found = init_anomalies(config), []
    for loss in losses:
        loss = np.float32(loss)
        status = detect_anomaly(anomalies, config, loss, np.float32(1))
        anomalies = update_anomalies(anomalies, status, loss)
        found.append(int(status))
    return found, anomalies


def test_a_spike_is_skipped_and_does_not_enter_the_median():
    losses = [3, 2, 4, 3, 300, 301, 3, 29, 36]
    found, anomalies = statuses(losses)
    assert found == [OK] * 4 + [SPIKE, SPIKE, OK, OK, SPIKE]  # medians 3, 3, 3, 3, 3.5
    np.testing.assert_array_equal(anomalies.losses, [4, 3, 3, 29])
    assert anomalies.skipped == 3


def test_spikes_need_enough_earlier_losses():
    assert statuses([1, 1000])[0] == [OK, OK]
    assert statuses([1, 1, 1000])[0] == [OK, OK, OK]  # the median of 1, 1, inf, inf is inf
    assert statuses([1, 1, 1, 1000])[0] == [OK, OK, OK, SPIKE]


def test_spikes_are_ignored_unless_asked_for():
    assert statuses([1] * 4 + [1e6], STOP_ON_NONFINITE)[0] == [OK] * 5
    assert statuses([1, np.nan, np.inf], STOP_ON_NONFINITE)[0] == [OK, NOT_FINITE, NOT_FINITE]
