"""Parameters from checkpoints: a run's own, those to start from, and the base of adapters."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from checkpointing import run_directory
from checkpointing.checkpoint_manager import DIRECTORY, find_checkpoint, refuse_damaged, saved_steps
from experiment.schema import ConfigError
from storage.hub import is_hub_address
from storage.mirror import checkpoint_directory, source_of
from storage.object_store import is_remote
from training.finetune import as_tree, by_name, merge_lora

# Parameters with a row per token, by the end of their names, and the axis of the rows.
VOCABULARY_AXES = {
    "token_embedding/embedding": 0,  # also of an encoder with its own table
    "vocabulary/output/kernel": 1,
    "vocabulary/bias": 0,
}


def read_params(workdir: str | Path, steps: Sequence[int], like: dict, *, ema: bool) -> dict:
    """Reads the model's parameters at one step, or their mean over steps.

    With `ema`, it reads the moving averages. `like` has the shapes and shardings. Adapters are
    merged into their base first, so the mean is that of the models.
    """
    restore = _restore_ema if ema else _restore_params
    directory = checkpoint_directory(workdir, DIRECTORY)
    base = load_base(workdir, like)
    total = None
    with ocp.Checkpointer(_items()) as checkpointer:
        for step in steps:  # one at a time, so that at most two are in memory
            path = directory / str(step)
            refuse_damaged(path)
            if base is None:
                found = restore(checkpointer, path, like)
            else:
                found = base.adapted(restore(checkpointer, path, _saved(checkpointer, path, like)))
            if len(steps) == 1:
                return found
            found = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found)
            total = found if total is None else jax.tree.map(jnp.add, total, found)
    return jax.tree.map(lambda leaf, to: (leaf / len(steps)).astype(to.dtype), total, like)


def read_own_params(workdir: str | Path, step: int, like: dict, *, ema: bool) -> dict:
    """Reads what a run with adapters trains: the adapters, and parameters that its base lacks.

    With `ema`, it reads the moving averages. `like` has the shardings of the model's parameters.
    """
    path = checkpoint_directory(workdir, DIRECTORY) / str(step)
    refuse_damaged(path)
    restore = _restore_ema if ema else _restore_params
    with ocp.Checkpointer(_items()) as checkpointer:
        return restore(checkpointer, path, _saved(checkpointer, path, like))


class LoadedParams(NamedTuple):
    """A model's parameters, and the names of those that are not copies of the other run's."""

    params: dict
    new: list[str]  # not in the other run: unchanged
    resized: list[str]  # copied token by token


def load_params(run: str, like: dict, rows: np.ndarray | None = None) -> LoadedParams:
    """Loads the parameters of another run, WORKDIR or WORKDIR:STEP, to start from.

    `like` is a tree of initialised parameters or shapes. Those that the other run does not have,
    or has in another shape, stay as in `like`. `rows` gives for each token its row in the other
    run's token tables, or -1; None treats these tables like any other parameter.
    """
    directory, step = find_checkpoint(run)
    base = load_base(directory.parent, like)
    with ocp.Checkpointer(_items()) as checkpointer:
        path = checkpoint_directory(directory.parent, DIRECTORY) / str(step)
        refuse_damaged(path)
        found = _restore_params(checkpointer, path, _saved(checkpointer, path, like))
    theirs = by_name(found if base is None else base.adapted(found))
    ours, new, resized = by_name(like), [], []
    for name, leaf in sorted(ours.items()):
        axes = [axis for end, axis in VOCABULARY_AXES.items() if name.endswith(end)]
        if name in theirs and axes and rows is not None:
            ours[name] = _with_rows(theirs[name], axes[0], rows, leaf)
            resized.append(name)
        elif name in theirs and theirs[name].shape == leaf.shape:
            ours[name] = theirs[name].astype(leaf.dtype)
        else:
            new.append(name)
    if len(new) == len(ours):
        raise ConfigError(f"init_from={run}: none of its parameters fits this model")
    return LoadedParams(as_tree(ours), new, resized)


def _with_rows(table: jax.Array, axis: int, rows: np.ndarray, like) -> jax.Array:
    """Returns the table for another vocabulary.

    A new row is the mean of all rows: its logit hardly changes the probabilities of the others,
    while a random row of another scale could dominate them.
    """

    def fit(table, rows):
        mean = table.astype(jnp.float32).mean(axis, keepdims=True).astype(table.dtype)
        is_new = jnp.expand_dims(rows < 0, tuple(a for a in range(table.ndim) if a != axis))
        copied = jnp.take(table, jnp.maximum(rows, 0), axis=axis)
        return jnp.where(is_new, mean, copied).astype(like.dtype)

    return jax.jit(fit, out_shardings=like.sharding)(table, rows)


class LoraBase(NamedTuple):
    """The parameters that a run's adapters adapt."""

    params: dict
    alpha: float

    def adapted(self, own: dict) -> dict:
        """Returns the model's parameters, given the run's own."""
        at = jax.tree.map(lambda leaf: leaf.sharding, _merged_places(own, self.params))
        merge = jax.jit(merge_lora, static_argnums=2, out_shardings=at)
        return merge(own, self.params, self.alpha)


def _merged_places(own: dict, base: dict) -> dict:
    """Returns an array with the right sharding for each parameter of the merged model."""
    return as_tree(
        by_name(base) | {name: leaf for name, leaf in by_name(own).items() if "/lora_" not in name}
    )


def base_provenance(run: str, workdir: Path, base: dict, alpha: float) -> dict[str, Any]:
    """Returns the entry of origins.json for `load_base`; a relative path lets both runs move."""
    directory, step = find_checkpoint(run)
    if is_hub_address(run):  # with its commit; the cache may be elsewhere next time
        return {"run": run, "step": step, "alpha": alpha, "params": fingerprint(base)}
    where = os.path.relpath(directory.parent, workdir.resolve())
    if source_of(directory.parent) or source_of(workdir):  # which have no relative paths
        where = source_of(directory.parent) or str(directory.parent)
    return {"run": where, "step": step, "alpha": alpha, "params": fingerprint(base)}


def load_base(workdir: str | Path, like: dict) -> LoraBase | None:
    """Loads the base of a run's adapters from another run; None if the run has no adapters.

    Refuses a base that is missing or has changed. Parameters that are also in `like` get its
    shardings.
    """
    source = run_directory.read_provenance(Path(workdir)).get("base")
    if source is None:
        return None
    run, step = source["run"], source["step"]
    if is_hub_address(run):
        run = find_checkpoint(run)[0].parent
    run = run if is_remote(run) else Path(workdir, run).resolve()
    if step not in saved_steps(run):
        raise ConfigError(
            f"{workdir} holds adapters for step {step} of {run}, which is gone; put it back there"
        )
    ours, everywhere = by_name(like), _everywhere(like)
    wanted = {
        name: _placed(known["shape"], known["dtype"], ours.get(name), everywhere)
        for name, known in source["params"].items()
    }
    found = load_params(f"{run}:{step}", as_tree(wanted))
    refuse_changed(
        {} if found.new else found.params,
        source["params"],
        f"{workdir} holds adapters for step {step} of {run}",
    )
    return LoraBase(found.params, source["alpha"])


def fingerprint(params: dict) -> dict[str, dict[str, Any]]:
    """Returns shape, type and checksum of each parameter by name; the same on any mesh."""
    checksums = jax.device_get(
        jax.jit(lambda named: {n: _checksum(x) for n, x in named.items()})(by_name(params))
    )
    return {
        name: {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "checksum": "".join(f"{int(part):08x}" for part in checksums[name]),
        }
        for name, leaf in sorted(by_name(params).items())
    }


def refuse_changed(params: dict, recorded: Mapping[str, Any], whose: str) -> None:
    """Refuses parameters that differ from the recorded ones; `whose` begins the message."""
    found = fingerprint(params) if params else {}
    changed = sorted(name for name in recorded if found.get(name) != recorded[name])
    if changed:
        raise ConfigError(
            f"{whose}, whose {changed[0]} has changed since; put back the checkpoint that the "
            "run began with"
        )


def _checksum(leaf: jax.Array) -> jax.Array:
    """Returns two sums of the elements' bits, each times an odd number for its position.

    Integer sums wrap around and do not depend on the order of addition. A change of any single
    element changes them.
    """
    bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}").astype(jnp.uint32)
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    factors = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B))
    odd = [(place * factor) ^ (place >> np.uint32(15)) | np.uint32(1) for factor in factors]
    return jnp.stack([(bits * number).sum(dtype=jnp.uint32) for number in odd])


def _items() -> ocp.CompositeCheckpointHandler:
    """Handlers for all items of a checkpoint; Orbax warns about items without one."""
    return ocp.CompositeCheckpointHandler(
        params=ocp.StandardCheckpointHandler(),
        rest=ocp.PyTreeCheckpointHandler(),
        metrics=ocp.JsonCheckpointHandler(),
    )


def _restore_params(checkpointer: ocp.Checkpointer, path: Path, wanted: dict) -> dict:
    args = ocp.args.Composite(params=ocp.args.StandardRestore(wanted))
    return checkpointer.restore(path, args=args)["params"]


def _restore_ema(checkpointer: ocp.Checkpointer, path: Path, wanted: dict) -> dict:
    item = {"ema": wanted}
    places = ocp.checkpoint_utils.construct_restore_args(item)
    # Partial: the optimizer's state, which is larger, is not read.
    args = ocp.args.PyTreeRestore(item, restore_args=places, partial_restore=True)
    return checkpointer.restore(path, args=ocp.args.Composite(rest=args))["rest"]["ema"]


def _saved(checkpointer: ocp.Checkpointer, path: Path, like: dict) -> dict:
    """Returns shapes of a checkpoint's parameters, with the types and shardings of `like`."""
    saved = checkpointer.metadata(path).item_metadata["params"]
    ours, everywhere = by_name(like), _everywhere(like)

    def wanted(path, leaf):
        same = ours.get(_name(path))
        fits = same is not None and same.shape == leaf.shape
        return _placed(leaf.shape, same.dtype if fits else leaf.dtype, same, everywhere)

    return jax.tree.map_with_path(wanted, dict(saved))


def _placed(shape, dtype, ours, everywhere) -> jax.ShapeDtypeStruct:
    """Returns a shape with the sharding of `ours` if that has the same shape."""
    fits = ours is not None and tuple(ours.shape) == tuple(shape)
    return jax.ShapeDtypeStruct(
        tuple(shape), jnp.dtype(dtype), sharding=ours.sharding if fits else everywhere
    )


def _everywhere(like: dict) -> jax.sharding.Sharding:
    """Returns a sharding that replicates on all devices of the parameters."""
    at = jax.tree.leaves(like)[0].sharding
    if isinstance(at, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(at.mesh, jax.sharding.PartitionSpec())
    return at


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
