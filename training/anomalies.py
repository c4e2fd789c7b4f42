"""Anomaly detection: NaN or infinite losses and gradients, and loss spikes.

The train step computes its own status from the state alone, so a resumed or repeated run gets the
same statuses. Everything that must survive a restart is part of the state.
"""

from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from training.config import FailureConfig
from training.exits import DivergedError

OK, NOT_FINITE, SPIKE = range(3)  # the status of a step
# For callers without a config: only a NaN or infinite loss or gradient ends the run.
STOP_ON_NONFINITE = FailureConfig(
    nonfinite="stop", spike="ignore", spike_factor=10.0, spike_window=1, rollback_steps=0,
    rollback_batches=0, limit=1, watchdog_seconds=0.0, watchdog_ends=False, heartbeat_seconds=100,
    join_seconds=300,
)  # fmt: skip


@flax.struct.dataclass
class AnomalyState:
    """Facts about earlier steps that later steps need. Checkpoints store these field names."""

    skipped: Array  # number of skipped steps
    in_a_row: Array  # skipped steps since the last update
    losses: Array  # losses of the last updates; inf where there are fewer
    rollbacks: Array  # number of rollbacks
    batches_left_out: Array  # batches that rollbacks have left out: batch index minus step


def init_anomalies(config: FailureConfig) -> AnomalyState:
    """Returns the anomaly state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    losses = jnp.full(config.spike_window, jnp.inf, jnp.float32)
    return AnomalyState(zero, zero, losses, zero, zero)


def detect_anomaly(
    anomalies: AnomalyState, config: FailureConfig, loss: Array, grad_norm: Array
) -> Array:
    """Returns the status of a step: OK, NOT_FINITE or SPIKE."""
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    if config.spike == "ignore":
        return jnp.where(finite, OK, NOT_FINITE)
    # The median is inf until half of the window is filled, and no loss exceeds that.
    spike = loss > config.spike_factor * jnp.median(anomalies.losses)
    return jnp.where(finite, jnp.where(spike, SPIKE, OK), NOT_FINITE)


def update_anomalies(anomalies: AnomalyState, status: Array, loss: Array) -> AnomalyState:
    """Returns the anomaly state after a step. Only losses of OK steps enter the window."""
    is_ok = status == OK
    losses = jnp.append(anomalies.losses[1:], loss.astype(jnp.float32))
    return anomalies.replace(
        skipped=jnp.where(is_ok, anomalies.skipped, anomalies.skipped + 1),
        in_a_row=jnp.where(is_ok, 0, anomalies.in_a_row + 1),
        losses=jnp.where(is_ok, losses, anomalies.losses),
    )


def status_metrics(anomalies: AnomalyState, status: Array, loss: Array) -> dict[str, Array]:
    """Returns a step's status as metrics for the loop. `loss` is the total that is minimised."""
    return {
        "failure/status": status,
        "failure/loss": loss,
        "failure/skipped": anomalies.skipped,
        "failure/in_a_row": anomalies.in_a_row,
        "failure/rollbacks": anomalies.rollbacks,
    }


def select_if_ok(status: Array, new, old):
    """Returns the new tree if the status is OK, otherwise the old tree, bit for bit."""
    return jax.tree.map(lambda new, old: jnp.where(status == OK, new, old), new, old)


def after_rollback(restored: AnomalyState, rollbacks: int, batches_left_out: int) -> AnomalyState:
    """Returns a restored checkpoint's anomaly state with the counts of the run so far."""

    def put(number: int, like: Array) -> Array:
        return jax.device_put(np.asarray(number, like.dtype), like.sharding)

    return restored.replace(
        rollbacks=put(rollbacks, restored.rollbacks),
        batches_left_out=put(batches_left_out, restored.batches_left_out),
    )


def needs_rollback(config: FailureConfig, metrics: Mapping[str, float], what: str) -> bool:
    """Whether a run goes back to a checkpoint after a failed step; otherwise the step is skipped.

    Raises DivergedError if the run has to end. `metrics` are those of the step, on the host; `what`
    says in words what happened.
    """
    status = metrics["failure/status"]
    if status == NOT_FINITE and config.nonfinite == "stop":
        raise DivergedError(f"{what}; lower optimizer.learning_rate, or set failure.nonfinite=skip")
    rolls_back = status == SPIKE and config.spike == "rollback"
    if metrics["failure/rollbacks" if rolls_back else "failure/in_a_row"] >= config.limit:
        raise DivergedError(
            f"{what}, after {config.limit} {'rollbacks' if rolls_back else 'steps in a row'} "
            "(failure.limit); lower optimizer.learning_rate"
        )
    return rolls_back
