"""The pinball loss against a loop, and what it is lowest at."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import series
from experiment.sections import from_mapping
from tests.runs import tiny
from training.losses import term_counts, term_sums, total_loss
from training.quantile_loss import pinball

LEVELS = (0.1, 0.5, 0.8)


def task(**keys):
    return dataclasses.replace(from_mapping(tiny(series)).task, quantiles=LEVELS, **keys)


def made(rows=4, horizon=5, seed=0):
    rng = np.random.default_rng(seed)
    quantiles = np.sort(rng.normal(size=(rows, horizon, 3)), axis=-1).astype(np.float32)
    targets = rng.normal(size=(rows, horizon)).astype(np.float32)
    weights = (rng.random((rows, horizon)) < 0.7).astype(np.float32)
    return quantiles, {"targets": targets, "weights": weights}


def test_the_sums_are_those_of_a_loop():
    quantiles, batch = made()
    loss = error = inside = count = 0.0
    for row, step in np.ndindex(4, 5):
        if not batch["weights"][row, step]:
            continue
        target, count = float(batch["targets"][row, step]), count + 1
        low, middle, high = (float(each) for each in quantiles[row, step])
        for level, each in zip(LEVELS, (low, middle, high), strict=True):
            too_low = target - each
            loss += (level * too_low if too_low > 0 else (1 - level) * -too_low) / 3
        error += abs(target - middle)
        inside += low <= target <= high
    outputs = {"quantiles": jnp.asarray(quantiles), "scale": jnp.float32(4)}
    loss_sums, metrics = term_sums(task(), outputs, batch)
    assert float(loss_sums["values"]) == pytest.approx(loss / 4, rel=1e-5)
    assert {name: float(total) for name, (total, _) in metrics.items()} == pytest.approx(
        {"nll": loss, "mae": error, "coverage": inside}, rel=1e-5
    )
    counts = term_counts(task(), batch)
    assert float(counts["values"]) == count == float(metrics["mae"][1])
    assert float(total_loss(loss_sums, counts)) == pytest.approx(loss / 4 / count, rel=1e-5)


def test_the_loss_is_lowest_at_the_quantile_of_the_values():
    values = np.random.default_rng(0).exponential(size=801).astype(np.float32)
    candidates = np.linspace(0, 4, 801).astype(np.float32)
    for level in (0.1, 0.5, 0.9):
        losses = pinball(candidates[:, None, None], values[None], (level,)).mean(axis=1)
        best = candidates[int(jnp.argmin(losses))]
        assert best == pytest.approx(np.quantile(values, level), abs=0.01)


def test_half_the_absolute_error_is_the_loss_of_the_median():
    quantiles, batch = made()
    found = pinball(quantiles[..., 1:2], batch["targets"], (0.5,))
    np.testing.assert_allclose(found, abs(batch["targets"] - quantiles[..., 1]) / 2, rtol=1e-5)


def test_parts_of_a_batch_add_up_and_missing_values_have_no_gradient():
    quantiles, batch = made()
    counts = term_counts(task(), batch)

    def loss_of(quantiles, batch):
        outputs = {"quantiles": quantiles, "scale": jnp.float32(2)}
        return total_loss(term_sums(task(), outputs, batch)[0], counts)

    expected, gradient = jax.value_and_grad(loss_of)(jnp.asarray(quantiles), batch)
    parts = [
        loss_of(jnp.asarray(quantiles[half]), {name: x[half] for name, x in batch.items()})
        for half in (slice(0, 2), slice(2, 4))
    ]
    assert float(expected) == pytest.approx(float(sum(parts)), rel=1e-5)
    assert (np.asarray(gradient)[batch["weights"] == 0] == 0).all()
    assert (np.asarray(gradient)[batch["weights"] == 1] != 0).all()
