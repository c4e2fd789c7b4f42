"""Checkpoints of a run: saved in the background, waited for, and found again."""

import re
from collections.abc import Mapping
from pathlib import Path

import jax
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


def find_checkpoint(run: str) -> tuple[Path, int]:
    """The directory and the step that WORKDIR or WORKDIR:STEP means; refuses what is not there."""
    workdir, step = re.fullmatch(r"(.*?)(?::(\d+))?", run).groups()
    directory = Path(workdir, DIRECTORY).resolve()
    if not directory.is_dir():
        raise ConfigError(f"init_from={run}: no {DIRECTORY}/ in {workdir}; give a run's workdir")
    steps = ocp.utils.checkpoint_steps(directory)
    if not steps or (step and int(step) not in steps):
        listed = ", ".join(map(str, sorted(steps))) or "none"
        raise ConfigError(f"init_from={run}: no such checkpoint; steps saved there: {listed}")
    return directory, int(step) if step else max(steps)


def load_params(run: str, like: dict) -> tuple[dict, list[str]]:
    """Parameters of another run, WORKDIR or WORKDIR:STEP, to start from.

    `like` is a tree of initialised parameters. Those that the other run does not have, or has in
    another shape, are kept as they are; their names are returned beside the merged tree.
    """
    directory, step = find_checkpoint(run)
    ours = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(like)}
    # Of the items only the first is wanted; one without a handler would be complained about.
    handler = ocp.CompositeCheckpointHandler(
        params=ocp.StandardCheckpointHandler(),
        rest=ocp.StandardCheckpointHandler(),
        metrics=ocp.JsonCheckpointHandler(),
    )
    with ocp.Checkpointer(handler) as checkpointer:
        saved = checkpointer.metadata(directory / str(step)).item_metadata["params"]
        wanted = jax.tree.map_with_path(
            lambda path, shape: _as_saved(shape, ours.get(_name(path))), dict(saved)
        )
        loaded = checkpointer.restore(
            directory / str(step),
            args=ocp.args.Composite(params=ocp.args.StandardRestore(wanted)),
        )["params"]
    theirs = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(loaded)}
    new = []

    def merge(path, leaf):
        found = theirs.get(_name(path))
        if found is None or found.shape != leaf.shape:
            new.append(_name(path))
            return leaf
        return found

    merged = jax.tree.map_with_path(merge, like)
    if len(new) == len(ours):
        raise ConfigError(f"init_from={run}: none of its parameters fits this model")
    return merged, new


def _as_saved(saved, ours) -> jax.ShapeDtypeStruct:
    """What to ask of the restore: our type and place where the shapes agree."""
    if ours is None or ours.shape != saved.shape:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(saved.shape, saved.dtype, sharding=device)
    return jax.ShapeDtypeStruct(ours.shape, ours.dtype, sharding=ours.sharding)


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
