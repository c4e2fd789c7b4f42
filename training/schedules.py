"""The learning rate of every update."""

import jax.numpy as jnp
import optax

from training.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, steps: int, width: int) -> optax.Schedule:
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
            return _after_warmup(config, optax.constant_schedule(peak))
        case "linear":
            return _after_warmup(config, optax.linear_schedule(peak, final, decay_length))
        case "cosine":
            decay = optax.cosine_decay_schedule(peak, decay_length, alpha=config.final_fraction)
            return _after_warmup(config, decay)
        case "stable_decay":
            decay_length = config.decay_length(end)
            begin = end - decay_length - config.warmup_steps
            return _after_warmup(config, optax.linear_schedule(peak, final, decay_length, begin))


def _after_warmup(config: OptimizerConfig, schedule: optax.Schedule) -> optax.Schedule:
    """A linear rise to the peak, then `schedule`, which counts from the end of the rise.

    The rise starts one step above 0, because an update with a learning rate of 0 is wasted.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if warmup:
        rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
        schedule = optax.join_schedules([rise, schedule], [warmup])
    # optax.cosine_decay_schedule mixes an integer count with floats, which strict dtype
    # promotion refuses.
    return lambda count: schedule(jnp.asarray(count, jnp.float32))


def _inverse_sqrt(factor: float, warmup: int, width: int) -> optax.Schedule:
    """Section 5.3 of "Attention Is All You Need" (2017), which counts updates from 1."""
    # Without warm-up the formula's limit is step ** -0.5 from the start, as with one step of it.
    warmup = max(warmup, 1)

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return factor * width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

    return schedule
