"""Patterns of metrics: one `*` stands for a number, as in eval/distance_*/accuracy."""

import re
from collections.abc import Collection, Iterable, Sequence

STAR = "*"
NUMBER = r"\d+(?:\.\d+)?"
PROBE = "probe/"  # metrics of probes, which a run does not log


def is_pattern(metric: str) -> bool:
    """Whether a metric stands for several ones."""
    return STAR in metric


def matches(pattern: str, names: Iterable[str]) -> dict[str, float]:
    """The names that a pattern stands for, each with its number, in the order of the numbers."""
    before, _, after = pattern.partition(STAR)
    regex = re.compile(f"{re.escape(before)}({NUMBER}){re.escape(after)}")
    found = {name: match[1] for name in names if (match := regex.fullmatch(name))}
    return {name: float(text) for name, text in sorted(found.items(), key=lambda f: float(f[1]))}


def expand(metrics: Sequence[str], names: Collection[str]) -> list[str]:
    """The metrics with each pattern replaced by the names that it stands for, each once."""
    found = [matches(each, names) if is_pattern(each) else [each] for each in metrics]
    return list(dict.fromkeys(name for some in found for name in some))


def without_patterns(metrics: Sequence[str]) -> list[str]:
    """The metrics that are not patterns."""
    return [each for each in metrics if not is_pattern(each)]


def only_patterns(metrics: Sequence[str]) -> list[str]:
    """The metrics that are patterns."""
    return [each for each in metrics if is_pattern(each)]


def is_measured(metric: str, known: Collection[str]) -> bool:
    """Whether a metric is one of the known ones, or a pattern that may match some.

    A config does not say which numbers by layer its run will log, so before the run only patterns
    of scores are checked. Metrics of probes are checked with the probes of the study.
    """
    if metric.startswith(PROBE):
        return True
    if not is_pattern(metric):
        return metric in known
    return bool(matches(metric, known)) or metric.startswith(("train/", "optim/", "perf/"))
