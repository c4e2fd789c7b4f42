import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.default import get_config
from training.config import OptimizerConfig
from training.schedules import learning_rate

DEFAULT = OptimizerConfig(**get_config().optimizer)
PEAK = 3e-3


def rates(steps, width=64, updates=None, **changes):
    """The learning rates of the first `updates` updates."""
    config = dataclasses.replace(DEFAULT, **{"learning_rate": PEAK, **changes})
    counts = jnp.arange(updates or steps, dtype=jnp.int32)  # as optax counts: from 0, in int32
    return np.asarray(jax.jit(jax.vmap(learning_rate(config, steps, width)))(counts))


@pytest.mark.parametrize("warmup", [1, 7, 4000])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_inverse_sqrt_is_the_formula_of_2017(warmup, factor):
    d_model = 512
    got = rates(
        100_000, d_model, schedule="inverse_sqrt", learning_rate=factor, warmup_steps=warmup
    )
    step_num = np.arange(1, 100_001, dtype=np.float64)
    formula = d_model**-0.5 * np.minimum(step_num**-0.5, step_num * warmup**-1.5)
    np.testing.assert_allclose(got, factor * formula, rtol=2e-6)


def test_inverse_sqrt_of_the_base_model_peaks_at_the_known_value():
    got = rates(10_000, 512, schedule="inverse_sqrt", learning_rate=1.0, warmup_steps=4000)
    assert got.argmax() == 3999
    assert got.max() == pytest.approx(6.9877e-4, rel=1e-4)


def test_inverse_sqrt_without_warmup_only_falls():
    got = rates(100, 16, schedule="inverse_sqrt", learning_rate=1.0, warmup_steps=0)
    np.testing.assert_allclose(got, 0.25 * np.arange(1, 101) ** -0.5, rtol=2e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "stable_decay"])
def test_warmup_rises_by_equal_steps_from_above_zero_to_the_peak(schedule):
    got = rates(100, schedule=schedule, warmup_steps=9, final_fraction=0.1)
    np.testing.assert_allclose(got[:10], PEAK * np.arange(1, 11) / 10, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "stable_decay"])
def test_without_warmup_the_first_update_has_the_peak(schedule):
    assert rates(100, schedule=schedule, warmup_steps=0)[0] == pytest.approx(PEAK)


def test_constant_stays():
    np.testing.assert_allclose(rates(50, schedule="constant", warmup_steps=10)[10:], PEAK)


def test_linear_falls_to_the_final_fraction_after_the_last_step():
    got = rates(50, schedule="linear", warmup_steps=10, final_fraction=0.2, updates=60)
    progress = np.clip((np.arange(10, 60) - 10) / 40, 0, 1)
    np.testing.assert_allclose(got[10:], PEAK * (1 - 0.8 * progress), rtol=1e-5)


def test_cosine_falls_to_the_final_fraction_after_the_last_step():
    got = rates(50, schedule="cosine", warmup_steps=10, final_fraction=0.2, updates=60)
    progress = np.clip((np.arange(10, 60) - 10) / 40, 0, 1)
    expected = PEAK * (0.2 + 0.8 * (1 + np.cos(np.pi * progress)) / 2)
    np.testing.assert_allclose(got[10:], expected, rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 20, 75])
def test_stable_decay_keeps_the_peak_until_the_last_fraction(warmup):
    got = rates(
        100, schedule="stable_decay", warmup_steps=warmup, decay_fraction=0.25, final_fraction=0.5
    )
    np.testing.assert_allclose(got[warmup:76], PEAK, rtol=1e-6)
    np.testing.assert_allclose(got[75:], PEAK * (1 - 0.5 * np.arange(25) / 25), rtol=1e-5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "stable_decay"])
def test_decay_steps_ends_the_decay_before_the_run(schedule):
    got = rates(100, schedule=schedule, warmup_steps=5, decay_steps=40, final_fraction=0.1)
    np.testing.assert_allclose(got[40:], 0.1 * PEAK, rtol=1e-5)
    assert got[39] > 0.1 * PEAK * 1.001


@pytest.mark.parametrize("schedule", ["linear", "cosine", "stable_decay"])
def test_even_a_run_of_one_step_learns(schedule):
    assert rates(1, schedule=schedule, warmup_steps=0)[0] == pytest.approx(PEAK)


def timed(steps, counts, time_used, **changes):
    """The learning rates of updates that are made when such shares of the time are used."""
    config = dataclasses.replace(DEFAULT, **{"learning_rate": PEAK, **changes})
    counts = jnp.asarray(counts, jnp.int32)
    time_used = jnp.asarray(time_used, jnp.float32)
    return np.asarray(jax.jit(jax.vmap(learning_rate(config, steps, 64)))(counts, time_used))


DECAYING = ["linear", "cosine", "stable_decay"]


@pytest.mark.parametrize("schedule", DECAYING)
def test_decay_ends_with_the_time_if_that_is_first(schedule):
    changes = dict(schedule=schedule, warmup_steps=10, final_fraction=0.2)
    # 50 of 1,000 steps are made in the time that is left after warm-up.
    got = timed(1000, 10 + np.arange(51), np.arange(51) / 50, **changes)
    assert got[0] == pytest.approx(PEAK)
    np.testing.assert_allclose(got[-1], 0.2 * PEAK, rtol=1e-5)
    # As in a run of 1,000 steps at the same share of them.
    untimed = rates(1001, updates=1001, decay_steps=1000, **changes)
    np.testing.assert_allclose(got[1:], untimed[20::20], rtol=1e-4)
    # Later is not lower.
    np.testing.assert_allclose(timed(1000, [70], [1.5], **changes), 0.2 * PEAK, rtol=1e-5)


@pytest.mark.parametrize("schedule", [*DECAYING, "constant", "inverse_sqrt"])
def test_decay_ends_with_the_steps_if_they_are_first(schedule):
    changes = dict(schedule=schedule, warmup_steps=7, final_fraction=0.1)
    got = timed(60, np.arange(60), np.linspace(0, 0.4, 60), **changes)
    begun = got[np.arange(60) >= 24]  # where the steps are ahead of the time
    np.testing.assert_allclose(begun, rates(60, **changes)[24:], rtol=1e-5)


def test_warm_up_counts_updates_whatever_the_time():
    # The first step has been compiled for a quarter of the time.
    got = timed(1000, np.arange(5), 0.25 + np.zeros(5), schedule="linear", warmup_steps=9)
    np.testing.assert_allclose(got, PEAK * np.arange(1, 6) / 10, rtol=1e-6)
    over = timed(1000, [5], [1.0], schedule="linear", warmup_steps=9, final_fraction=0.1)
    np.testing.assert_allclose(over, 0.1 * PEAK, rtol=1e-5)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt"])
def test_schedules_without_an_end_ignore_the_time_limit(schedule):
    got = timed(50, np.arange(50), np.linspace(0, 1, 50), schedule=schedule, warmup_steps=5)
    np.testing.assert_allclose(got, rates(50, schedule=schedule, warmup_steps=5), rtol=1e-6)
