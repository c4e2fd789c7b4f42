"""Cost of checkpoints: the time that the training loop is blocked, and the time of digests.

    python benchmarks/checkpoint.py [--megabytes=500] [--rounds=3] [--directory=DIR] [--bucket=URL]

Saves and restores one state in turn in these ways, and prints the median of each:

- synchronous: saves and waits until the checkpoint is on disk;
- blocked: the part of a save during which `Checkpoints.save` blocks the loop;
- saved with and without digests of the files, restored with and without verifying them;
- saved with digests and flushed to the disk (checkpoint.fsync);
- with --bucket, saved with digests to a bucket, and restored from there with verifying.
"""

import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
from absl import app, flags, logging

from checkpointing import digests
from checkpointing.checkpoint_manager import Checkpoints
from configs.default import get_config
from storage.mirror import open_run_directory
from training.config import CheckpointConfig
from training.train_state import TrainState

MEGABYTES = flags.DEFINE_integer("megabytes", 500, "Size of the state.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "Saves and restores of each kind.")
DIRECTORY = flags.DEFINE_string("directory", "", "Where to write; default: a temporary one.")
BUCKET = flags.DEFINE_string("bucket", "", "A directory such as gs://BUCKET/benchmark to write to.")
ARRAYS = 24


def make_state(megabytes: int) -> TrainState:
    """Makes parameters and two moments of random numbers, which do not compress."""
    rows = megabytes * 10**6 // (3 * ARRAYS * 4 * 1024)
    make = jax.jit(lambda key: jax.random.normal(key, (rows, 1024)))

    def tree(seed):
        keys = jax.random.split(jax.random.key(seed), ARRAYS)
        return {f"layer_{number}": make(key) for number, key in enumerate(keys)}

    state = TrainState(jnp.zeros((), jnp.int32), tree(0), (tree(1), tree(2)), None)
    return jax.block_until_ready(state)


def seconds(action) -> float:
    """The seconds that a call takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def save(checkpoints: Checkpoints, step: int, state: TrainState) -> tuple[float, float]:
    """Returns the seconds that the loop was blocked, and those until all was on disk."""
    begin = time.perf_counter()
    blocked = seconds(lambda: checkpoints.save(step, state, {}))
    checkpoints.wait()
    return blocked, time.perf_counter() - begin


@contextlib.contextmanager
def bucket_checkpoints(config: CheckpointConfig) -> Iterator[Checkpoints | None]:
    """Checkpoints in the bucket, if there is one."""
    if not BUCKET.value:
        yield None
        return
    with Checkpoints(open_run_directory("--bucket", BUCKET.value), config) as checkpoints:
        yield checkpoints


def main(argv) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)  # Orbax logs every action
    state = make_state(MEGABYTES.value)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    config = CheckpointConfig(
        **get_config().checkpoint.to_dict() | dict(keep=1, overlap=1, fsync=False)
    )
    flushing = dataclasses.replace(config, fsync=True)
    record = digests.record
    names = ("blocked", "plain", "digested", "restored", "verified", "flushed")
    names += ("uploaded", "downloaded") if BUCKET.value else ()
    times = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY.value or None) as directory,
        Checkpoints(directory, config) as checkpoints,
        Checkpoints(Path(directory, "flushed"), flushing) as flushed_checkpoints,
        bucket_checkpoints(config) as remote_checkpoints,
    ):
        save(flushed_checkpoints, 1, state)
        save(checkpoints, 1, state)  # warm-up
        for number in range(ROUNDS.value):
            digests.record = lambda directory: None
            _, plain = save(checkpoints, 10 * number + 2, state)
            restored = seconds(
                lambda step=10 * number + 2: jax.block_until_ready(checkpoints.restore(step, like))
            )
            digests.record = record
            blocked, digested = save(checkpoints, 10 * number + 3, state)

            def verify(place, step):
                assert place.newest_valid(print) == step
                jax.block_until_ready(place.restore(step, like))

            step = 10 * number + 3
            verified = seconds(lambda step=step: verify(checkpoints, step))
            _, flushed = save(flushed_checkpoints, number + 2, state)
            found = [blocked, plain, digested, restored, verified, flushed]
            if remote_checkpoints is not None:
                found.append(save(remote_checkpoints, step, state)[1])
                found.append(seconds(lambda step=step: verify(remote_checkpoints, step)))
            for name, value in zip(times, found, strict=True):
                times[name].append(value)
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(f"state: {size / 1e6:.0f} MB")
    for name, value in middle.items():
        print(f"{name:10} {value * 1e3:8.0f} ms   ({', '.join(f'{v:.3f}' for v in times[name])} s)")
    print(f"blocked / synchronous save:        {middle['blocked'] / middle['digested']:.3f}")
    print(f"save with digests / without:       {middle['digested'] / middle['plain']:.3f}")
    print(f"save with flushing / without:      {middle['flushed'] / middle['digested']:.3f}")
    if BUCKET.value:
        print(f"save to the bucket / to the disk:  {middle['uploaded'] / middle['digested']:.3f}")
        print(f"resume from the bucket / the disk: {middle['downloaded'] / middle['verified']:.3f}")
    print(f"restore with verifying / without:  {middle['verified'] / middle['restored']:.3f}")


if __name__ == "__main__":
    app.run(main)
