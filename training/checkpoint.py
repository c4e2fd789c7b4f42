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
        policies = [LatestN(config.keep)]
        if config.best_metric:
            policies.append(
                BestN(
                    get_metric_fn=lambda metrics: metrics[config.best_metric],
                    reverse=config.best_mode == "min",
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._manager = ocp.CheckpointManager(
            Path(workdir, DIRECTORY).resolve(),
            item_names=("params", "rest"),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
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


def load_params(run: str, like: dict) -> tuple[dict, list[str]]:
    """Parameters of another run, WORKDIR or WORKDIR:STEP, to start from.

    `like` is a tree of initialised parameters. Those that the other run does not have, or has in
    another shape, are kept as they are; their names are returned beside the merged tree.
    """
    workdir, step = re.fullmatch(r"(.*?)(?::(\d+))?", run).groups()
    directory = Path(workdir, DIRECTORY)
    if not directory.is_dir():
        raise ConfigError(f"init_from={run}: no {DIRECTORY}/ in {workdir}; give a run's workdir")
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(directory.resolve(), options=options) as manager:
        steps = manager.all_steps()
        if not steps or (step and int(step) not in steps):
            raise ConfigError(f"init_from={run}: {workdir} has checkpoints of the steps {steps}")
        chosen = int(step) if step else max(steps)
        saved_shapes = manager.item_metadata(chosen)["params"]
        ours = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(like)}
        wanted = jax.tree.map_with_path(
            lambda path, saved: _as_saved(saved, ours.get(_name(path))), dict(saved_shapes)
        )
        loaded = manager.restore(
            chosen, args=ocp.args.Composite(params=ocp.args.StandardRestore(wanted))
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
