"""A study: a claim, the variants that test it, their seeds and metrics. It is plain data.

The file of a study has a function `get_study()` that returns a dict with the fields of `Study`.
"""

import dataclasses
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from experiment.help_text import ROOT
from experiment.schema import ConfigError, Count, build, did_you_mean, refuse_remote
from sweeps.grid import CONFIG, SEED, file_stem, parse_grid, safe_name, variants_of
from sweeps.metric_patterns import STAR, is_pattern, only_patterns
from sweeps.probe_checks import name_problems

PLOT_KEYS = {
    "bars": (),
    "curves": (),
    "lines": ("x", "by", "log_x"),
    "profile": ("log_x", "log_y"),
}  # by kind
Matched = Literal["", "parameters", "flops", "time"]


@dataclasses.dataclass(frozen=True)
class Study:
    """What a sweep runs and how its results are shown."""

    name: str
    config: str  # FILE or FILE:ARCHITECTURE
    variants: Mapping[str, Any]  # name -> {config key: value}; the key `config`: another file
    overrides: Mapping[str, Any]  # config keys of all variants
    claim: str = ""  # one sentence that the variants test
    seeds: tuple[Count, ...] = ()  # (): the config's
    metrics: tuple[str, ...] = ()  # one `*` stands for any number; (): the main score
    probes: tuple[str, ...] = ()  # computed after training; their metrics are probe/NAME/KEY
    baseline: str = ""  # the variant to compare with; "": the first
    match: Matched = ""  # what variants have in common with the baseline, by their width
    plots: tuple[
        Mapping[str, Any], ...
    ] = ()  # {"kind": ..., "metric": ...}; (): bars and curves of each metric, profiles of patterns

    @property
    def compared_with(self) -> str:
        """The name of the baseline."""
        return self.baseline or next(iter(self.variants))

    def problems(self) -> Iterator[str]:
        """Yields a message for each field that cannot work."""
        if not self.variants:
            yield "variants is empty; name at least one, such as {'baseline': {}}"
        if self.baseline and self.baseline not in self.variants:
            yield (
                f"baseline={self.baseline} is not a variant."
                f"{did_you_mean(self.baseline, self.variants)} "
                f"There are: {', '.join(self.variants)}"
            )
        for name, overrides in self.variants.items():
            if name != safe_name(name):
                yield f"the variant {name!r} must be named like a file, such as {safe_name(name)!r}"
            if not isinstance(overrides, Mapping):
                yield f"the variant {name} must be a dict of config keys, not {overrides!r}"
            elif SEED in overrides:
                yield f"the variant {name} sets the seed; list seeds in `seeds`"
        if SEED in self.overrides or CONFIG in self.overrides:
            yield "overrides sets seed or config; the study has fields of these names"
        twice = [seed for seed in self.seeds if self.seeds.count(seed) > 1]
        if twice:
            yield f"the seed {twice[0]} is there twice; two cells would have the same name"
        for metric in self.metrics:
            if metric.count(STAR) > 1:
                yield f"metrics: {metric} has more than one *, which stands for a number"
        yield from name_problems(self.probes, self.metrics)
        for plot in self.plots:
            yield from self._plot_problems(plot)

    def _plot_problems(self, plot: Mapping[str, Any]) -> Iterator[str]:
        if plot.get("kind") not in PLOT_KEYS:
            yield f"plots: the kind of {plot!r} must be {' or '.join(PLOT_KEYS)}"
            return
        allowed = ("kind", "metric", *PLOT_KEYS[plot["kind"]])
        for key in plot:
            if key not in allowed:
                yield f"plots: {plot['kind']} has no {key}.{did_you_mean(key, allowed)}"
        if plot["kind"] == "lines" and "x" not in plot:
            yield "plots: lines needs x, the config key on the horizontal axis"
        metric = plot.get("metric")
        if plot["kind"] == "profile" and not (
            is_pattern(metric) if metric else only_patterns(self.metrics)
        ):
            yield "plots: profile needs a metric with a * for a number, such as eval/length_*/loss"
        if plot["kind"] != "profile" and metric and is_pattern(metric):
            yield f"plots: {metric} stands for several metrics; draw it with kind profile"
        needs_name = self.metrics or is_pattern(metric or "")  # the main score has no *
        if metric and needs_name and metric not in self.metrics:
            yield f"plots: {metric} is not in metrics.{did_you_mean(metric, self.metrics)}"


def load_study(path: str) -> Study:
    """The study of a file; raises ConfigError with one line per problem."""
    refuse_remote("--study", path)
    place = existing(path)
    if place is None:
        known = {each.stem: each for each in sorted((ROOT / "studies").glob("[!_]*.py"))}
        listed = ", ".join(f"studies/{each.name}" for each in known.values()) or "none"
        raise ConfigError(f"--study={path}: no such file. There are: {listed}")
    try:
        values = runpy.run_path(str(place))["get_study"]()
    except Exception as error:  # whatever the file may raise
        said = "it has no get_study()" if isinstance(error, KeyError) else f"{error}"
        raise ConfigError(f"--study={path} cannot be read: {said}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"--study={path}: get_study() must return a dict")
    return _built({"name": Path(path).stem, **values}, f"--study={path}")


def existing(path: str) -> Path | None:
    """The file, relative to the working directory or to the checkout; None if there is none."""
    found = [each for each in (Path(path), ROOT / path) if each.is_file()]
    return found[0] if found else None


def resolved_config(config: str) -> str:
    """FILE or FILE:ARCHITECTURE with the file where it was found."""
    path, colon, argument = config.partition(":")
    return f"{existing(path) or path}{colon}{argument}"


def study_of_grid(
    config: str,
    grid: str,
    *,
    metrics: Sequence[str] = (),
    probes: Sequence[str] = (),
    baseline: str = "",
    match: str = "",
) -> Study:
    """The study of --config, --grid and the flags that go with them."""
    values = parse_grid(grid)
    for seed in values.get(SEED, ()):
        if not seed.isdecimal():
            raise ConfigError(f"--grid: seed={seed} is not a whole number of 0 or more")
    fields = {
        "name": file_stem(config),
        "config": config,
        "variants": variants_of(values),
        "seeds": tuple(int(seed) for seed in values.get(SEED, ())),
        "metrics": tuple(metrics),
        "probes": tuple(probes),
        "baseline": baseline,
        "match": match,
    }
    return _built(fields, "")


def with_flags(
    study: Study,
    *,
    metrics: Sequence[str] = (),
    probes: Sequence[str] = (),
    baseline: str = "",
    match: str = "",
) -> Study:
    """The study with what the command line gives in place of its own."""
    given = {"metrics": tuple(metrics), "probes": tuple(probes), "baseline": baseline}
    given["match"] = match
    given = {name: value for name, value in given.items() if value}
    if "metrics" in given:  # the plots may name others
        given["plots"] = ()
    return _built({**vars(study), **given}, "") if given else study


def _built(values: Mapping[str, Any], where: str) -> Study:
    study, problems = build(Study, {"overrides": {}, **values}, "")
    if problems:
        raise ConfigError([f"{where}: {each}" if where else each for each in problems])
    return study
