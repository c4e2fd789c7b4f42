"""Whole jobs, tiny, and what they left behind; for the tests of the scripts."""

import copy

import jax
import numpy as np
import orbax.checkpoint as ocp

# Dropout and the moving average are on, so that they too must survive an interruption. The
# schedule is constant because the others depend on the number of steps, which is changed here.
TINY = {
    "model": dict(
        width=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1,
        dropout_residual=0.1,
    ),
    "data": dict(batch_size=4),
    "optimizer": dict(schedule="constant", warmup_steps=0, ema_decay=0.9),
    "checkpoint": dict(every=2, keep=9),
    "eval": dict(every=2, batch_size=8, batches=1, samples=2),
}  # fmt: skip
STEPS = 4


def tiny(config, steps=STEPS, **sections):
    config = copy.deepcopy(config.get_config().to_dict())
    for changes in (TINY, sections):
        for name, values in changes.items():
            if isinstance(values, dict):
                assert values.keys() <= config[name].keys()
                config[name].update(values)
            else:
                config[name] = values
    return {**config, "steps": steps, "log_every": 1}


def saved(workdir, step):
    """Every array of a checkpoint, by name, whatever devices it was on."""
    tree = {}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for item in ("params", "rest"):
            path = workdir / "checkpoints" / str(step) / item
            to_numpy = jax.tree.map(
                lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
                checkpointer.metadata(path).item_metadata.tree,
            )
            tree[item] = checkpointer.restore(path, restore_args=to_numpy)
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(tree)}
