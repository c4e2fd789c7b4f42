"""Checkpoints of a run: saved in the background, waited for, and found again."""

import re
from collections.abc import Mapping
from pathlib import Path

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from schema import ConfigError
from training.config import CheckpointConfig
from training.step import TrainState

DIRECTORY = "checkpoints"


class Checkpoints:
    """The checkpoints under a workdir. Leaving the context waits for what is being written."""

    def __init__(self, workdir: str | Path, config: CheckpointConfig):
        self._best_metric = config.best_metric
        policies, best = [LatestN(config.keep)], {}
        if config.best_metric:

            def score(metrics: Mapping[str, float]) -> float:
                return metrics[config.best_metric]

            policies.append(
                BestN(
                    get_metric_fn=score,
                    reverse=config.best_mode == "min",
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
            # Without these the metrics would not be written, and a resumed run would forget
            # which checkpoint was the best.
            best = dict(best_fn=score, best_mode=config.best_mode)
        self._manager = ocp.CheckpointManager(
            Path(workdir, DIRECTORY).resolve(),
            item_names=("params", "rest"),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
                **best,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception) -> None:
        # Raises if a save failed in the background; without this, the failure would go unseen.
        self._manager.wait_until_finished()
        self._manager.close()

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Starts a save of the state; `metrics` are this step's evaluation, or empty."""
        if step in self._manager.all_steps():
            return
        self._manager.check_for_errors()
        known = self._best_metric in metrics
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                rest=ocp.args.StandardSave(_rest(state)),
            ),
            metrics={self._best_metric: metrics[self._best_metric]} if known else None,
            force=True,
        )

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state saved at `step`, each array placed where `abstract` says."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract.params),
                rest=ocp.args.StandardRestore(_rest(abstract)),
            ),
        )
        return TrainState(params=restored["params"], **restored["rest"])


def _rest(state: TrainState) -> dict:
    """All but the parameters, which are an item of their own so that others can load them alone."""
    return {"step": state.step, "opt_state": state.opt_state, "ema": state.ema}


def saved_steps(workdir: str | Path) -> list[int]:
    """The steps of the checkpoints that are complete, in order."""
    directory = Path(workdir, DIRECTORY)
    return sorted(ocp.utils.checkpoint_steps(directory)) if directory.is_dir() else []


def best_step(workdir: str | Path, config: CheckpointConfig) -> int | None:
    """Of the checkpoints that are there, the best by `best_metric`; None if none was scored."""
    # Unlike that of `Checkpoints`, this manager clears nothing away: the run may still go on.
    options = ocp.CheckpointManagerOptions(create=False, best_fn=lambda metrics: 0.0)
    with ocp.CheckpointManager(Path(workdir, DIRECTORY).resolve(), options=options) as manager:
        metrics = {step: manager.metrics(step) or {} for step in manager.all_steps()}
    scores = {
        step: known[config.best_metric]
        for step, known in metrics.items()
        if config.best_metric in known
    }
    choose = max if config.best_mode == "max" else min
    # Of equals the newest, which is the one that is kept.
    return choose(sorted(scores, reverse=True), key=scores.get) if scores else None


def find_checkpoint(run: str, key: str = "init_from") -> tuple[Path, int]:
    """The directory and the step that WORKDIR or WORKDIR:STEP means; refuses what is not there."""
    workdir, step = re.fullmatch(r"(.*?)(?::(\d+))?", run).groups()
    directory = Path(workdir, DIRECTORY).resolve()
    if not directory.is_dir():
        raise ConfigError(f"{key}={run}: no {DIRECTORY}/ in {workdir}; give a run's workdir")
    steps = saved_steps(workdir)
    if not steps or (step and int(step) not in steps):
        listed = ", ".join(map(str, steps)) or "none"
        raise ConfigError(f"{key}={run}: no such checkpoint; steps saved there: {listed}")
    return directory, int(step) if step else steps[-1]
