"""The cells of a sweep: one run of train.py for each variant and seed."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpointing import run_directory
from configs import default
from experiment import sections
from experiment.command_line import parse_config
from experiment.former_keys import with_current_keys
from experiment.schema import ConfigError
from experiment.sections import Experiment
from sweeps.grid import CONFIG, safe_name
from sweeps.study import Study, resolved_config

CELLS, LOGS, CLAIMS = "cells", "logs", "claims"  # directories of a sweep

# Keys that change neither what a run computes nor how it is scored. A cell may be resumed with
# other values of these.
WITHOUT_EFFECT = (
    "log_every", "compilation_cache", "wandb_project", "profile_steps", "checkpoint", "failure",
    "data.cache_dir", "data.prefetch", "data.workers", "data.path", "eval.samples", "mesh",
)  # fmt: skip
# Keys of images: without effect where the model reads text.
OF_IMAGES = (
    "data.image_size", "data.image_edge",
    "data.image_fit", "data.image_resample", "data.image_upright",
    "data.image_mean", "data.image_std",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a config file and the keys that differ from it."""

    name: str
    variant: str
    seed: int
    config: str
    overrides: Mapping[str, str]  # as they are written on a command line; with the seed

    def arguments(self, workdir: Path) -> list[str]:
        """The arguments of train.py."""
        flags = [f"--config.{key}={value}" for key, value in self.overrides.items()]
        return [f"--config={self.config}", f"--workdir={self.workdir(workdir)}", *flags]

    def workdir(self, sweep: Path) -> Path:
        """The run directory, in the directory of the sweep."""
        return sweep / CELLS / self.name

    def log(self, sweep: Path) -> Path:
        """The file with what train.py prints."""
        return sweep / LOGS / f"{self.name}.log"

    def changed(self, **overrides: Any) -> "Cell":
        """The same cell with other values of some keys; `__` in a name stands for the dot."""
        texts = {key.replace("__", "."): flag_text(value) for key, value in overrides.items()}
        return dataclasses.replace(self, overrides={**self.overrides, **texts})

    def config_dict(self) -> dict[str, Any]:
        """The config, as train.py reads it."""
        return parse_config(self.config, self.overrides)

    def experiment(self) -> Experiment:
        """The validated config; raises ConfigError."""
        return sections.from_mapping(self.config_dict())


def flag_text(value: Any) -> str:
    """A config value as text, as it is written after --config.KEY=."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return repr(tuple(value))
    raise ConfigError(f"{value!r} cannot be a config value; use a number, a text or a tuple")


def make_cells(
    study: Study, common: Mapping[str, Any], sizes: Mapping[str, Mapping[str, int]] | None = None
) -> list[Cell]:
    """The cells of a study, variants first, then seeds.

    `common` are overrides of the command line, for all cells; a variant's own keys come last.
    `sizes` are keys that matching chose for variants.
    """
    shared = {key: flag_text(value) for key, value in {**study.overrides, **common}.items()}
    seeds = study.seeds
    if not seeds:
        seeds = (parse_config(resolved_config(study.config), shared)["seed"],)
    cells = []
    for variant, overrides in study.variants.items():
        own = {key: flag_text(value) for key, value in overrides.items() if key != CONFIG}
        own |= {key: flag_text(value) for key, value in (sizes or {}).get(variant, {}).items()}
        config = overrides.get(CONFIG, study.config)
        for seed in seeds:
            cells.append(
                Cell(
                    name=safe_name(f"{variant}-seed{seed}"),
                    variant=variant,
                    seed=seed,
                    config=resolved_config(config),
                    overrides={**shared, **own, "seed": str(seed)},
                )
            )
    refuse_same_names(cells)
    return cells


def refuse_same_names(cells: Sequence[Cell]) -> None:
    """Raises ConfigError for two cells that would share a directory."""
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two cells are named {name}; rename a variant")


def validate(cells: Sequence[Cell]) -> dict[str, Experiment]:
    """The experiment of each cell, by name; raises ConfigError with all problems, each once."""
    experiments, problems = {}, {}
    for cell in cells:
        try:
            experiments[cell.name] = cell.experiment()
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(cell.variant)
    if problems:
        variants = {cell.variant for cell in cells}
        raise ConfigError(
            [
                problem if set(found) == variants else f"{found[0]}: {problem}"
                for problem, found in problems.items()
            ]
        )
    return experiments


def recorded_differences(
    workdir: Path, experiment: Experiment, ignored: Sequence[str] = ()
) -> list[str]:
    """What differs between the recorded config of a run and the one that is asked for.

    Empty if nothing is recorded. `ignored` are keys besides `WITHOUT_EFFECT`.
    """
    if not (workdir / run_directory.CONFIG).exists():
        return []
    defaults = json.loads(json.dumps(default.get_config().to_dict()))
    recorded = run_directory.with_defaults(
        json.loads(json.dumps(run_directory.read_config(workdir))), defaults
    )
    sections_asked = dataclasses.asdict(experiment)
    asked = with_current_keys(
        json.loads(json.dumps({**sections_asked.pop("run"), **sections_asked}))
    )
    without_effect = (*WITHOUT_EFFECT, *ignored)
    if experiment.model.input == "tokens":
        without_effect += OF_IMAGES
    return [
        f"{name}: {was} -> {now}"
        for name, was, now in run_directory.differences(recorded, asked)
        if not any(name == key or name.startswith(f"{key}.") for key in without_effect)
    ]


def refuse_other_configs(
    sweep: Path,
    cells: Sequence[Cell],
    experiments: Mapping[str, Experiment],
    ignored: Sequence[str] = (),
) -> None:
    """Raises ConfigError for cells whose directory holds a run with another config."""
    problems = []
    for cell in cells:
        workdir = cell.workdir(sweep)
        found = recorded_differences(workdir, experiments[cell.name], ignored)
        if found:
            problems.append(
                f"{workdir} holds a run with another config ({'; '.join(found)}); restore these "
                "values, remove that directory, or choose another --workdir"
            )
    if problems:
        raise ConfigError(problems)
