"""Resizes variants so that they have the baseline's parameters, FLOPs or time of a step.

`model.width` changes, and `model.feed_forward` with it in proportion. The number of heads stays, so
the width changes in steps that the heads divide; where that leaves a gap, feed_forward closes it.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from experiment import sections
from experiment.schema import ConfigError
from experiment.sections import Experiment
from sweeps.cells import Cell
from sweeps.counted_sizes import SizeCounter

WIDTH, FEED_FORWARD = "model.width", "model.feed_forward"
MOST_WIDTH = 2**16
MOST_TIMED = 5  # timed runs of one variant
CLOSE_IN_TIME = 0.03  # relative difference of step times that counts as none: timings vary more

Widths = tuple[int, int]  # model.width, model.feed_forward


@dataclasses.dataclass(frozen=True)
class Match:
    """The sizes that were chosen for a variant."""

    sizes: Mapping[str, int]  # by config key; {} if nothing had to change
    text: str


class Resizer:
    """A variant whose width can be changed."""

    def __init__(self, config: Mapping[str, Any]):
        self._config = config
        model = sections.from_mapping(config).model
        self.width, self.feed_forward = model.width, model.feed_forward
        # An even head size suits every position scheme. With a head size of its own, the width is
        # free; sinusoids need it to be even.
        self.unit = 2 if model.head_size else 2 * model.heads
        # Powers of two suit hardware; small layers need finer steps.
        fraction = max(1, model.feed_forward // 64)
        self._tuning_unit = min(8, 2 ** (fraction.bit_length() - 1))

    def proportional(self, width: int) -> Widths:
        """The width with a feed-forward layer in proportion."""
        unit = self._tuning_unit
        feed_forward = self.feed_forward * width / self.width
        return width, max(unit, unit * round(feed_forward / unit))

    def experiment(self, sizes: Widths) -> Experiment:
        """The validated experiment with other sizes."""
        config = copy.deepcopy(dict(self._config))
        config["model"] |= {"width": sizes[0], "feed_forward": sizes[1]}
        return sections.from_mapping(config)

    def closest(self, target: float, quantity: Callable[[Experiment], float]) -> Widths:
        """The sizes whose quantity is closest to the target. It must grow with the sizes."""
        found: dict[Widths, float] = {}

        def value(sizes: Widths) -> float:
            if sizes not in found:
                found[sizes] = quantity(self.experiment(sizes))
            return found[sizes]

        def error(sizes: Widths) -> float:
            return abs(math.log(value(sizes) / target))

        def crossing(of_number: Callable[[int], Widths], start: int, most: int, least: int = 1):
            """The two neighbours between which the quantity passes the target."""
            low = high = min(max(least, start), most)
            stride = 1
            while value(of_number(low)) >= target and low > least:
                low, high, stride = max(least, low - stride), low, 2 * stride
            stride = 1
            while value(of_number(high)) < target and high < most:
                low, high, stride = high, min(most, high + stride), 2 * stride
            while high - low > 1:
                middle = (low + high) // 2
                is_below = value(of_number(middle)) < target
                low, high = (middle, high) if is_below else (low, middle)
            return [of_number(low), of_number(high)]

        def tuned(sizes: Widths) -> list[Widths]:
            """The width with feed-forward layers up to a third larger or smaller."""
            width, unit = sizes[0], self._tuning_unit
            proportional = sizes[1] // unit
            most, least = proportional * 4 // 3, max(1, math.ceil(proportional * 2 / 3))
            if value((width, sizes[1] + unit)) == value(sizes):  # feed_forward has no effect
                return [sizes]
            return [sizes, *crossing(lambda k: (width, k * unit), proportional, most, least)]

        # Most parameters grow with the square of the width: a guess that is nearly right.
        guess = self.width * math.sqrt(target / value((self.width, self.feed_forward)))
        neighbours = crossing(
            lambda k: self.proportional(k * self.unit),
            round(guess / self.unit),
            MOST_WIDTH // self.unit,
        )
        # The closer width first: it stays if tuning makes the other one no closer.
        neighbours.sort(key=error)
        return min((sizes for each in neighbours for sizes in tuned(each)), key=error)


def match_counted(cell: Cell, baseline: Cell, quantity: str, counter: SizeCounter) -> Match:
    """Matches parameters or FLOPs, which are counted. `quantity`: parameters or flops."""
    field = "parameters" if quantity == "parameters" else "step_flops"

    def counted(experiment: Experiment) -> float:
        return getattr(counter.sizes(experiment), field)

    target = counted(baseline.experiment())
    resizer = Resizer(cell.config_dict())
    sizes = resizer.closest(target, counted)
    experiment = resizer.experiment(sizes)
    unit = "parameters" if quantity == "parameters" else "FLOPs a step"
    count = counted(experiment)
    reached = f"{_counted(count)} {unit}, {_compared(count, target)}"
    return _match(resizer, sizes, f"{reached} {_counted(target)} of the baseline")


def match_timed(
    cell: Cell,
    baseline_seconds: float,
    measure: Callable[[Cell], float],
    note: Callable[[str], None],
) -> Match:
    """Matches the time of a training step by short timed runs."""
    resizer = Resizer(cell.config_dict())
    timed: dict[Widths, float] = {}
    sizes = resizer.width, resizer.feed_forward
    while sizes not in timed and len(timed) < MOST_TIMED:
        timed[sizes] = measure(cell.changed(model__width=sizes[0], model__feed_forward=sizes[1]))
        ratio = timed[sizes] / baseline_seconds
        note(f"{cell.variant}: width {sizes[0]}: {1e3 * timed[sizes]:.1f} ms a step")
        if abs(ratio - 1) <= CLOSE_IN_TIME:
            break
        units = sizes[0] * ratio ** (-1 / _exponent(timed)) / resizer.unit
        # At least one unit further, in the right direction.
        units = min(round(units), sizes[0] // resizer.unit - 1) if ratio > 1 else units
        units = max(round(units), sizes[0] // resizer.unit + 1) if ratio < 1 else units
        sizes = resizer.proportional(max(1, units) * resizer.unit)
    best = min(timed, key=lambda each: abs(math.log(timed[each] / baseline_seconds)))
    reached = f"{1e3 * timed[best]:.1f} ms a step, {_compared(timed[best], baseline_seconds)}"
    return _match(resizer, best, f"{reached} {1e3 * baseline_seconds:.1f} ms of the baseline")


def _exponent(timed: Mapping[Widths, float]) -> float:
    """The power of the width that the time grows with, by the last two measurements."""
    if len(timed) < 2:
        return 2.0
    (before, last), (first_time, last_time) = list(timed)[-2:], list(timed.values())[-2:]
    found = math.log(last_time / first_time) / math.log(last[0] / before[0])
    return min(max(found, 0.5), 3.0)  # timings are noisy


def _match(resizer: Resizer, sizes: Widths, reached: str) -> Match:
    was = resizer.width, resizer.feed_forward
    if sizes == was:
        return Match({}, f"width {was[0]} stays: {reached}")
    changes = f"width {was[0]} -> {sizes[0]}, feed_forward {was[1]} -> {sizes[1]}"
    return Match({WIDTH: sizes[0], FEED_FORWARD: sizes[1]}, f"{changes}: {reached}")


def _counted(value: float) -> str:
    return f"{value:,.0f}" if value < 1e9 else f"{value:.4g}"


def _compared(value: float, target: float) -> str:
    share = value / target - 1
    if abs(share) < 5e-4:
        return "equal to the"
    return f"{abs(share):.1%} {'above' if share > 0 else 'below'} the"


def refuse_own_sizes(variants: Mapping[str, Mapping[str, Any]], baseline: str) -> None:
    """Raises ConfigError for variants that set the sizes which matching would change."""
    for name, overrides in variants.items():
        own = [key for key in (WIDTH, FEED_FORWARD) if key in overrides]
        if own and name != baseline:
            raise ConfigError(f"{name} sets {own[0]}, which --match chooses; leave one of them out")
