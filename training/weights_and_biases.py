"""Metrics, config and identity of a run for Weights & Biases."""

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError


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
        self._run = wandb.init(
            project=project,
            name=workdir.name,
            dir=str(workdir),
            id=id_file.read_text(),
            resume="allow",
        )
        # Not among the options of init: a resumed run may have changed keys.
        self._run.config.update(dict(config), allow_val_change=True)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        # A run that was killed repeats the steps since its checkpoint, with the same values.
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
