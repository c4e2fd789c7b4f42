"""sweep.json: what a sweep runs, and what was counted and chosen for it.

Several processes may join a sweep, and later commands may add cells. What all cells have in common
must stay the same.
"""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from sweeps.result_files import write_text

NAME = "sweep.json"
AT_START = ("sweep.", "timing")  # files and directories that come before the record
COMMON = ("config", "common", "match", "search")  # fields that may not change


@dataclasses.dataclass(frozen=True)
class VariantRecord:
    """A variant as it was planned when it was first part of the sweep."""

    overrides: Mapping[str, str]  # its own keys, as on a command line
    steps: int
    parameters: int
    step_flops: int
    data_key: str  # equal for variants whose runs see the same batches
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # that matching chose
    matched: str = ""  # what matching chose, in words


@dataclasses.dataclass(frozen=True)
class SweepRecord:
    """The content of sweep.json."""

    name: str
    claim: str
    config: str
    common: Mapping[str, str]
    match: str
    baseline: str
    metrics: tuple[str, ...]
    known_metrics: tuple[str, ...]
    plots: tuple[Mapping[str, Any], ...]
    search: Mapping[str, Any]
    variants: Mapping[str, VariantRecord]
    cells: Mapping[str, tuple[str, int]]  # name -> (variant, seed)
    probes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # by variant

    def flops(self, variant: str) -> int:
        """FLOPs of training a variant to its last step."""
        return self.variants[variant].step_flops * self.variants[variant].steps


def read(sweep: Path) -> SweepRecord | None:
    """What is recorded; None for a new sweep. Refuses a directory of something else."""
    path = sweep / NAME
    if not path.exists():
        others = [each for each in _listed(sweep) if not each.startswith((".", *AT_START))]
        if others:
            raise ConfigError(
                f"{sweep} holds other files ({', '.join(others[:3])}) and no {NAME}; "
                "choose another --workdir"
            )
        return None
    try:
        values = json.loads(path.read_text())
        variants = {name: VariantRecord(**each) for name, each in values.pop("variants").items()}
        cells = {name: (variant, seed) for name, (variant, seed) in values.pop("cells").items()}
        tuples = {key: tuple(values.pop(key)) for key in ("metrics", "known_metrics", "plots")}
        # Older records have no probes.
        probes = {name: tuple(each) for name, each in values.pop("probes", {}).items()}
        return SweepRecord(**values, **tuples, variants=variants, cells=cells, probes=probes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); choose another --workdir") from error


def _listed(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []


def refuse_other_sweep(sweep: Path, recorded: SweepRecord, asked: Mapping[str, Any]) -> None:
    """Raises ConfigError if what all cells share is not what was recorded.

    `asked` has the fields of `COMMON`, and the overrides of each variant in `variants`.
    """
    problems = []
    for field in COMMON:
        was, now = getattr(recorded, field), asked[field]
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            for key in sorted({*was, *now}):
                if was.get(key) != now.get(key):
                    problems.append(f"{key}: {_shown(was.get(key))} -> {_shown(now.get(key))}")
        elif was != now:
            problems.append(f"{field}: {_shown(was)} -> {_shown(now)}")
    for name, overrides in asked["variants"].items():
        before = recorded.variants.get(name)
        if before is not None and dict(before.overrides) != dict(overrides):
            problems.append(f"variant {name}: {_shown(before.overrides)} -> {_shown(overrides)}")
    if asked["match"] and asked["baseline"] != recorded.baseline:
        problems.append(f"baseline: {recorded.baseline} -> {asked['baseline']} (with --match)")
    if problems:
        raise ConfigError(
            f"{sweep} holds another sweep ({'; '.join(problems)}); restore these values or choose "
            "another --workdir. Variants and seeds may be added"
        )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    return "none" if value in (None, "") else str(value)


def join(sweep: Path, asked: SweepRecord) -> SweepRecord:
    """Adds variants and cells to the record, and returns all of it.

    What another process has recorded in the meantime stays: sizes that were chosen by measuring
    must be the same for all processes.
    """
    with _locked(sweep):
        recorded = read(sweep)
        if recorded is not None:
            new = {
                field: getattr(asked, field)
                for field in ("name", "claim", "baseline", "metrics", "known_metrics", "plots")
            }
            asked = dataclasses.replace(
                recorded,
                **new,
                variants={**recorded.variants, **_added(asked.variants, recorded.variants)},
                cells={**recorded.cells, **asked.cells},
                probes={**recorded.probes, **asked.probes},
            )
        write_text(sweep / NAME, json.dumps(dataclasses.asdict(asked), indent=2) + "\n")
        return asked


def _added(asked: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in asked.items() if name not in recorded}


@contextlib.contextmanager
def _locked(sweep: Path) -> Iterator[None]:
    """Waits for other processes that write the record; they need milliseconds."""
    with (sweep / "sweep.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
