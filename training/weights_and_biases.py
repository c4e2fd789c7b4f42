"""Metrics, config and identity of a run for Weights & Biases."""

import json
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError
from storage.mirror import source_of


class WeightsAndBiases:
    """Writes metrics to Weights & Biases."""

    NAME = "wandb"

    def __init__(self, workdir: Path, resume_step: int, project: str, config: Mapping[str, Any]):
        try:
            import wandb  # an optional extra
        except ImportError as error:
            raise ConfigError(
                f"wandb_project={project} needs Weights & Biases: pip install -e '.[wandb]'"
            ) from error
        # The id is stored in the workdir, so a resumed run continues its own curves.
        id_file = workdir / "wandb_id"
        if resume_step == 0 or not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        try:
            self._run = wandb.init(
                project=project,
                name=workdir.name,
                dir=str(workdir),
                id=id_file.read_text(),
                resume="allow",
            )
        except wandb.errors.UsageError as error:
            raise ConfigError(
                f"wandb_project={project}: {error}; without a terminal, set WANDB_API_KEY, or "
                "WANDB_MODE=offline and run `wandb sync` later"
            ) from error
        # Not among the options of init: a resumed run may have changed keys. The name is short, so
        # the config also says which run it is.
        identity = {"workdir": source_of(workdir) or str(workdir.resolve())}
        self._run.config.update({**config, **identity}, allow_val_change=True)
        self._repeat(workdir / "metrics.jsonl", resume_step)

    def _repeat(self, path: Path, resume_step: int) -> None:
        """Writes what the run reported before, and W&B does not have: a kill loses its buffers."""
        if not resume_step or not path.exists():
            return
        for line in path.read_text(errors="replace").splitlines():
            try:
                metrics = json.loads(line)
            except ValueError:
                continue  # a line that a kill cut off
            step = metrics.pop("step", None)
            if isinstance(step, int) and step <= resume_step:
                self.write(step, {name: float(value) for name, value in metrics.items()})

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        # A run that was killed repeats the steps since its checkpoint, with the same values. W&B
        # says which steps it has. Offline it has none: each restart's file has the curve from the
        # first step.
        if step >= self._run.step:
            self._run.log(dict(metrics), step=step)

    def finish(self, scores: Collection[str]) -> None:
        """Does nothing: W&B shows the last values of all metrics."""

    def restore(self, step: int) -> str:
        """Does nothing: W&B keeps its own files."""
        return ""

    def rewind(self, step: int) -> None:
        """Does nothing: W&B accepts no step twice, so curves have a gap until newer steps."""

    def close(self) -> None:
        self._run.finish()
