"""Steps that must not count: a loss or gradient that is no number, a loss far above its like.

The verdict on a step is reached inside it, from the state alone: so a run that is resumed or
repeated reaches the same. What must outlive a checkpoint is part of the state.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from training.config import FailureConfig

FINE, NOT_FINITE, SPIKE = range(3)
# The guard of a job that only wants to know when its loss is no number.
WATCHES = FailureConfig(
    nonfinite="stop", spike="ignore", spike_factor=10.0, spike_window=1, rollback_steps=0,
    rollback_batches=0, limit=1, watchdog_seconds=0.0, watchdog_ends=False, heartbeat_seconds=100,
)  # fmt: skip


@flax.struct.dataclass
class Guard:
    """What is remembered of the steps so far."""

    skipped: Array  # steps that changed nothing, in all
    in_a_row: Array  # those since the last step that changed something
    losses: Array  # of the last steps that changed something, inf where there was none yet
    rollbacks: Array  # how often the run went back
    batches_left_out: Array  # by which the data is ahead of the steps, since then


def new_guard(config: FailureConfig) -> Guard:
    zero = jnp.zeros((), jnp.int32)
    losses = jnp.full(config.spike_window, jnp.inf, jnp.float32)
    return Guard(zero, zero, losses, zero, zero)


def judge(guard: Guard, config: FailureConfig, loss: Array, grad_norm: Array) -> Array:
    """FINE, NOT_FINITE or SPIKE."""
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    if config.spike == "ignore":
        return jnp.where(finite, FINE, NOT_FINITE)
    # Until half of the window is filled the median is inf, and nothing is greater than that.
    spike = loss > config.spike_factor * jnp.median(guard.losses)
    return jnp.where(finite, jnp.where(spike, SPIKE, FINE), NOT_FINITE)


def after(guard: Guard, verdict: Array, loss: Array) -> Guard:
    """What is remembered after a step: only one that counts enters the window of losses."""
    counts = verdict == FINE
    losses = jnp.append(guard.losses[1:], loss.astype(jnp.float32))
    return guard.replace(
        skipped=jnp.where(counts, guard.skipped, guard.skipped + 1),
        in_a_row=jnp.where(counts, 0, guard.in_a_row + 1),
        losses=jnp.where(counts, losses, guard.losses),
    )


def findings(guard: Guard, verdict: Array, loss: Array) -> dict[str, Array]:
    """What the run has to know of a step, as metrics."""
    return {
        "failure/verdict": verdict,
        "failure/loss": loss,  # the one that was judged: all that is minimised
        "failure/skipped": guard.skipped,
        "failure/in_a_row": guard.in_a_row,
        "failure/rollbacks": guard.rollbacks,
    }


def unless_faulty(verdict: Array, new, old):
    """The new values of a tree, or the old ones bit by bit if the step does not count."""
    return jax.tree.map(lambda new, old: jnp.where(verdict == FINE, new, old), new, old)


def gone_back(restored: Guard, rollbacks: int, batches_left_out: int) -> Guard:
    """The guard of a checkpoint, with what came after it that must not be forgotten."""

    def put(number: int, like: Array) -> Array:
        return jax.device_put(np.asarray(number, like.dtype), like.sharding)

    return restored.replace(
        rollbacks=put(rollbacks, restored.rollbacks),
        batches_left_out=put(batches_left_out, restored.batches_left_out),
    )
