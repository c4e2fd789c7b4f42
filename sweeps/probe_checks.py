"""Which probes exist and which fit a config; all bad input is refused before anything runs."""

from collections.abc import Iterable, Mapping, Sequence

from experiment.schema import ConfigError, did_you_mean
from experiment.sections import Experiment
from sweeps.metric_patterns import PROBE, is_pattern, matches
from sweeps.probes import PROBES


def name_problems(probes: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """A message for each unknown probe, and for each metric that no probe of these gives."""
    problems = [
        f"probes: there is no {name}.{did_you_mean(name, PROBES)} There are: {', '.join(PROBES)}"
        for name in probes
        if name not in PROBES
    ]
    for metric in metrics:
        name, _, key = metric.removeprefix(PROBE).partition("/")
        if not metric.startswith(PROBE) or (name in probes and name not in PROBES):
            continue
        if name not in probes:
            known = did_you_mean(name, PROBES)
            problems.append(f"metrics: {metric} needs {name} among the study's probes.{known}")
        elif not _is_key(key, PROBES[name].keys):
            known = ", ".join(f"{PROBE}{name}/{each}" for each in PROBES[name].keys)
            problems.append(f"metrics: {metric} is not measured; the probe gives {known}")
    return problems


def _is_key(key: str, known: Iterable[str]) -> bool:
    return any(key == each or (is_pattern(each) and matches(each, [key])) for each in known)


def misfits(probes: Sequence[str], experiments: Mapping[str, Experiment]) -> list[str]:
    """A note for each probe and variant that do not fit; refuses a probe that fits no variant.

    `experiments` are those of the variants, by name.
    """
    notes = []
    for name in probes:
        found = {variant: PROBES[name].problem(each) for variant, each in experiments.items()}
        reasons = {variant: reason for variant, reason in found.items() if reason}
        if len(reasons) == len(experiments):
            reason = next(iter(reasons.values()))
            raise ConfigError(f"the probe {name} fits no variant: {reason}; leave it out")
        notes += [f"{variant}: no {PROBE}{name}: {reason}" for variant, reason in reasons.items()]
    return notes


def applicable_probes(probes: Sequence[str], experiment: Experiment) -> tuple[str, ...]:
    """Those of the probes that fit a config."""
    return tuple(name for name in probes if not PROBES[name].problem(experiment))
