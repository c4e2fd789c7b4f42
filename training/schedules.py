"""Learning-rate schedules."""

from typing import Protocol

import jax.numpy as jnp
import optax
from jax import Array

from training.config import OptimizerConfig


class Schedule(Protocol):
    """The learning rate as a function of the number of updates."""

    def __call__(self, count: Array, time_used: Array | None = None) -> Array:
        """Returns the learning rate after `count` updates.

        `time_used` is the used share of the run's time limit, if there is one. Decay then ends
        with the steps or with the time, whichever comes first. Warm-up counts updates only.
        """


def learning_rate(config: OptimizerConfig, steps: int, width: int) -> Schedule:
    """Returns the schedule for `steps` updates of a model of this width.

    Optax calls it with the number of updates made so far: 0 for the first.
    """
    peak = config.learning_rate
    final = peak * config.final_fraction
    end = config.decay_end(steps)
    decay_length = end - config.warmup_steps
    match config.schedule:
        case "inverse_sqrt":
            return _inverse_sqrt(peak, config.warmup_steps, width)
        case "constant":
            return _after_warmup(config, optax.constant_schedule(peak), end)
        case "linear":
            return _after_warmup(config, optax.linear_schedule(peak, final, decay_length), end)
        case "cosine":
            decay = optax.cosine_decay_schedule(peak, decay_length, alpha=config.final_fraction)
            return _after_warmup(config, decay, end)
        case "stable_decay":
            decay_length = config.decay_length(end)
            begin = end - decay_length - config.warmup_steps
            decay = optax.linear_schedule(peak, final, decay_length, begin)
            return _after_warmup(config, decay, end)


def _after_warmup(config: OptimizerConfig, decay: optax.Schedule, end: int) -> Schedule:
    """Linear warm-up to the peak, then `decay`, which counts from the end of the warm-up to `end`.

    Warm-up starts one step above 0, because an update with learning rate 0 is wasted.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    rise = optax.constant_schedule(peak)
    if warmup:
        rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    by_count = optax.join_schedules([rise, decay], [warmup]) if warmup else decay

    def schedule(count, time_used=None):
        # optax.cosine_decay_schedule mixes an integer count with floats, which strict promotion
        # refuses.
        count = jnp.asarray(count, jnp.float32)
        if time_used is None:
            return by_count(count)
        # The count that a run would have by now if its steps filled the time limit.
        furthest = jnp.maximum(count, jnp.minimum(time_used, 1.0) * end)
        return jnp.minimum(rise(count), decay(jnp.maximum(furthest - warmup, 0.0)))

    return schedule


def _inverse_sqrt(factor: float, warmup: int, width: int) -> Schedule:
    """Section 5.3 of "Attention Is All You Need" (2017), which counts updates from 1."""
    # Without warm-up: step ** -0.5 from the start, as with one step of warm-up.
    warmup = max(warmup, 1)

    def schedule(count, time_used=None):
        del time_used  # this schedule has no end
        step = jnp.asarray(count, jnp.float32) + 1
        return factor * width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

    return schedule
