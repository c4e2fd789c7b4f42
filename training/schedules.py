"""The learning rate of every update."""

from typing import Protocol

import jax.numpy as jnp
import optax
from jax import Array

from training.config import OptimizerConfig


class Schedule(Protocol):
    def __call__(self, count: Array, time_used: Array | None = None) -> Array:
        """The learning rate after `count` updates.

        `time_used` is the share of the run's time that has passed, where it has a limit: decay
        ends when the first of them does, the steps or the time. Warm-up counts updates alone.
        """


def learning_rate(config: OptimizerConfig, steps: int, width: int) -> Schedule:
    """The schedule of a run of `steps` updates of a model with `width` channels.

    Optax calls it with the number of updates already made, so the first update asks for 0.
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
    """A linear rise to the peak, then `decay`, which counts from the end of the rise to `end`.

    The rise starts one step above 0, because an update with a learning rate of 0 is wasted.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    rise = optax.constant_schedule(peak)
    if warmup:
        rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    by_count = optax.join_schedules([rise, decay], [warmup]) if warmup else decay

    def schedule(count, time_used=None):
        # optax.cosine_decay_schedule mixes an integer count with floats, which strict dtype
        # promotion refuses.
        count = jnp.asarray(count, jnp.float32)
        if time_used is None:
            return by_count(count)
        # As many updates as there would be by now, had the run time for all of its steps.
        furthest = jnp.maximum(count, jnp.minimum(time_used, 1.0) * end)
        return jnp.minimum(rise(count), decay(jnp.maximum(furthest - warmup, 0.0)))

    return schedule


def _inverse_sqrt(factor: float, warmup: int, width: int) -> Schedule:
    """Section 5.3 of "Attention Is All You Need" (2017), which counts updates from 1."""
    # Without warm-up the formula's limit is step ** -0.5 from the start, as with one step of it.
    warmup = max(warmup, 1)

    def schedule(count, time_used=None):
        del time_used  # it has no end to come to
        step = jnp.asarray(count, jnp.float32) + 1
        return factor * width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

    return schedule
