"""Random search: 'optimizer.learning_rate=log(1e-4,1e-2);model.heads=2,4,8' -> trials."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from experiment.schema import ConfigError
from sweeps.grid import CONFIG, SEED, parse_grid

CALL = re.compile(r"(\w+)\((.*)\)")
KINDS = ("log", "uniform", "int")
DIGITS = 4  # of a sampled number, so that commands can be read and repeated exactly


@dataclasses.dataclass(frozen=True)
class SearchRange:
    """The values that a key may take."""

    kind: str  # log, uniform, int or choice
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    def sample(self, rng: np.random.Generator) -> str:
        """A value, as it is written on a command line."""
        match self.kind:
            case "choice":
                return self.choices[int(rng.integers(len(self.choices)))]
            case "int":
                return str(int(rng.integers(int(self.low), int(self.high) + 1)))
            case "log":
                value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            case _:
                value = rng.uniform(self.low, self.high)
        # Rounding must not leave the range.
        return f"{min(max(float(f'{value:.{DIGITS}g}'), self.low), self.high):.{DIGITS}g}"


def parse_search(text: str) -> dict[str, SearchRange]:
    """The range of each key; raises ConfigError for one that cannot be sampled."""
    ranges = {}
    for key, values in parse_grid(text, "--search").items():
        if key in (SEED, CONFIG):
            raise ConfigError(f"--search: {key} cannot be searched for; leave it out")
        ranges[key] = _range(key, values)
    return ranges


def _range(key: str, values: list[str]) -> SearchRange:
    call = CALL.fullmatch(values[0])
    if len(values) > 1 or not call:
        return SearchRange("choice", choices=tuple(values))
    kind, bounds = call[1], call[2].split(",")
    if kind not in KINDS:
        raise ConfigError(
            f"--search: {key}={values[0]}: {kind} is not one of: {', '.join(KINDS)}, or a list of "
            "values"
        )
    try:
        low, high = (float(bound) for bound in bounds)
    except ValueError:
        raise ConfigError(
            f"--search: {key}={values[0]} needs two numbers, such as {kind}(1,10)"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--search: {key}={values[0]}: the first bound must be below the second")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--search: {key}={values[0]}: log needs bounds above 0")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--search: {key}={values[0]}: int needs whole numbers")
    return SearchRange(kind, low, high)


def trial_variants(
    ranges: Mapping[str, SearchRange], trials: int, seed: int
) -> dict[str, dict[str, str]]:
    """The overrides of each trial, by name.

    A trial depends on the seed and its number only, so more trials begin with the same ones.
    """
    if trials < 1:
        raise ConfigError(f"--trials={trials} must be at least 1")
    variants = {}
    for number in range(trials):
        rng = np.random.default_rng([seed, number])
        variants[f"trial-{number:03d}"] = {key: each.sample(rng) for key, each in ranges.items()}
    return variants
