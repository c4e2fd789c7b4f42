"""Successive halving: all trials train a little, the best of them go on.

A trial is one run that is continued: rung k ends at step r(k) of the schedule of the full length
(optimizer.decay_steps), so a trial that reaches the last rung equals an uninterrupted run.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiment.schema import ConfigError


class Rung(NamedTuple):
    """A round of successive halving."""

    trials: int  # that take part
    steps: int  # that each of them has reached at its end


def make_rungs(trials: int, factor: int, steps: int) -> list[Rung]:
    """The rungs: each has 1/factor of the trials of the one before, and factor times its steps.

    A factor of 0 means no halving: one rung with all trials. The last rung has `steps` steps.
    """
    if factor == 0:
        return [Rung(trials, steps)]
    if factor < 2:
        raise ConfigError(f"--halving={factor} must be at least 2: the best 1/N of trials go on")
    rungs = []
    count = trials
    while count >= factor:
        rungs.append(count)
        count //= factor
    rungs.append(count)
    last = len(rungs) - 1
    return [
        Rung(count, max(1, steps // factor ** (last - place))) for place, count in enumerate(rungs)
    ]


def total_steps(rungs: Sequence[Rung]) -> int:
    """The training steps of all trials together. A trial continues where it stopped."""
    before, total = 0, 0
    for rung in rungs:
        total += rung.trials * (rung.steps - before)
        before = rung.steps
    return total


def steps_for_budget(trials: int, factor: int, budget: int) -> int:
    """The largest number of steps of the last rung whose rungs fit the budget, in steps."""
    low, high = 0, max(1, budget)
    while low < high:
        middle = (low + high + 1) // 2
        if total_steps(make_rungs(trials, factor, middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    rungs = make_rungs(trials, factor, max(1, low))
    if not low or any(a.steps == b.steps for a, b in itertools.pairwise(rungs)):
        raise ConfigError(
            f"a budget of {budget:,} steps is too small for {trials} trials; raise it or lower "
            "--trials"
        )
    return low


def starts(rungs: Sequence[Rung]) -> int:
    """How often a process is started: once for each trial of each rung."""
    return sum(rung.trials for rung in rungs)


def promote(values: Mapping[str, float], count: int, mode: str) -> list[str]:
    """The best `count` trials, best first; of equal ones, the first.

    Trials without a finite value do not go on, so there may be fewer.
    """
    sign = 1 if mode == "max" else -1
    finite = [name for name, value in values.items() if math.isfinite(value)]
    return sorted(finite, key=lambda name: -sign * values[name])[:count]
