"""The results of probes of a run: RUN/probes/NAME.json for each.

A file is valid while the run's newest checkpoint is the one that it was computed from.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpointing.checkpoint_manager import saved_steps
from checkpointing.digests import MANIFEST
from sweeps.metric_patterns import PROBE
from sweeps.result_files import without_nan, write_text

DIRECTORY = "probes"


def missing_probes(workdir: Path, probes: Sequence[str]) -> list[str]:
    """The probes that have no result for the run's newest checkpoint."""
    checkpoint = newest_checkpoint(workdir) if probes else {}
    return [name for name in probes if _read(workdir, name, checkpoint) is None]


def probe_values(workdir: Path) -> dict[str, float]:
    """The values of all probes for the newest checkpoint, as {probe/NAME/KEY: value}."""
    names = sorted(path.stem for path in (workdir / DIRECTORY).glob("[!.]*.json"))
    checkpoint = newest_checkpoint(workdir) if names else {}
    found = {name: _read(workdir, name, checkpoint) or {} for name in names}
    return {
        f"{PROBE}{name}/{key}": float(value)
        for name, values in found.items()
        for key, value in values.items()
    }


def write_values(
    workdir: Path, name: str, checkpoint: Mapping[str, Any], values: Mapping[str, float]
) -> None:
    """Records the values of a probe for a checkpoint."""
    (workdir / DIRECTORY).mkdir(exist_ok=True)
    content = {"probe": name, **checkpoint, "values": without_nan(values)}
    write_text(_path(workdir, name), json.dumps(content, indent=2) + "\n")


def newest_checkpoint(workdir: Path) -> dict[str, Any]:
    """The newest saved step, and the digest of its manifest."""
    step = max(saved_steps(workdir), default=0)
    manifest = workdir / "checkpoints" / str(step) / MANIFEST
    content = manifest.read_bytes() if manifest.exists() else b""
    return {"step": step, "checkpoint": hashlib.sha256(content).hexdigest()}


def _path(workdir: Path, name: str) -> Path:
    return workdir / DIRECTORY / f"{name}.json"


def _read(workdir: Path, name: str, checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of a probe; None if they are missing or of another checkpoint."""
    try:
        content = json.loads(_path(workdir, name).read_text())
        is_current = all(content[key] == value for key, value in checkpoint.items())
        return content["values"] if is_current else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
