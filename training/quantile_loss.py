"""The loss of forecasts: the pinball loss of quantiles, as sums and counts."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array

from training.config import TaskConfig

MAE, COVERAGE = "mae", "coverage"


def pinball(quantiles_btc: Array, targets_bt: Array, levels: tuple[float, ...]) -> Array:
    """The mean pinball loss of the quantiles of each value (B, H), in the units of the values.

    A quantile of level q costs q for each unit that it is too low, and 1 - q for each that it is
    too high. The expected cost is lowest at the quantile itself.
    """
    levels_c = jnp.asarray(levels, jnp.float32)
    missing_btc = targets_bt[..., None] - quantiles_btc
    return jnp.maximum(levels_c * missing_btc, (levels_c - 1) * missing_btc).mean(axis=-1)


def quantile_counts(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The number of values that count: what `total_loss` divides by."""
    return {"values": batch["weights"].astype(jnp.float32).sum()}


def quantile_sums(
    task: TaskConfig, outputs: Mapping[str, Array], batch: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Returns the loss sum, and every metric as (sum, count).

    The metric `nll`, which is reported as the loss, is the pinball loss in the units of the series.
    What is minimised is divided by the deviation that the model normalises with, so that gradients
    do not depend on the units. `mae` is the error of the median, `coverage` the share of values
    from the lowest to the highest quantile.
    """
    quantiles_btc = outputs["quantiles"].astype(jnp.float32)
    targets_bt, weights_bt = batch["targets"], batch["weights"].astype(jnp.float32)
    count = quantile_counts(batch)["values"]
    loss = (pinball(quantiles_btc, targets_bt, task.quantiles) * weights_bt).sum()
    median_bt = quantiles_btc[..., task.quantiles.index(0.5)]
    inside_bt = (quantiles_btc[..., 0] <= targets_bt) & (targets_bt <= quantiles_btc[..., -1])
    metrics = {
        "nll": (loss, count),
        MAE: ((jnp.abs(targets_bt - median_bt) * weights_bt).sum(), count),
        COVERAGE: ((inside_bt.astype(jnp.float32) * weights_bt).sum(), count),
    }
    return {"values": loss / outputs["scale"]}, metrics
