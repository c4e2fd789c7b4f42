"""Checkpoints: exact restoring, which steps are kept, and loading parameters into another model."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import os
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from checkpointing import checkpoint_manager, digests
from checkpointing.checkpoint_manager import Checkpoints, best_step, find_checkpoint, saved_steps
from checkpointing.stored_params import load_params, read_params
from configs.default import get_config
from experiment.schema import ConfigError
from training.config import CheckpointConfig
from training.exits import SaveFailedError
from training.train_state import TrainState

CONFIG = CheckpointConfig(**get_config().checkpoint.to_dict())
METRIC = "eval/dates/accuracy"


def make_params(seed, classes=5):
    rng = np.random.default_rng(seed)

    def normal(*shape, dtype=jnp.float32):
        return jnp.asarray(rng.normal(size=shape), dtype)

    return {
        "backbone": {"dense": {"kernel": normal(4, 6), "bias": normal(6, dtype=jnp.bfloat16)}},
        "classes": {"kernel": normal(6, classes), "bias": normal(classes)},
    }


def make_state(seed=0, step=7):
    """A state in which no two arrays are alike."""
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        params=make_params(seed),
        opt_state=(
            optax.EmptyState(),
            optax.ScaleByAdamState(
                jnp.asarray(step, jnp.int32), mu=make_params(seed + 1), nu=make_params(seed + 2)
            ),
        ),
        ema=make_params(seed + 3),
    )


def abstract(tree):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for (path, ours), theirs in zip(
        jax.tree.leaves_with_path(tree), jax.tree.leaves(other), strict=True
    ):
        assert ours.dtype == theirs.dtype, path
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes(), path


def save(workdir, scores, **changes):
    """Saves a state at the steps 1, 2, ... with these metrics; returns the steps that remain."""
    with Checkpoints(workdir, dataclasses.replace(CONFIG, **changes)) as checkpoints:
        for step, metrics in enumerate(scores, start=1):
            checkpoints.save(step, make_state(seed=step), metrics)
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


@pytest.mark.parametrize("ema", [True, False])
def test_a_state_comes_back_bit_by_bit(tmp_path, ema):
    state = make_state()
    state = state if ema else state.replace(ema=None)
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoints.save(7, state, {})
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        assert checkpoints.latest_step() == 7
        assert_same(checkpoints.restore(7, abstract(state)), state)


@pytest.mark.parametrize("fsync", [True, False])
def test_files_are_flushed_to_the_disk_before_a_checkpoint_gets_its_name(
    tmp_path, monkeypatch, fsync
):
    final, flushed = tmp_path / "checkpoints" / "1", []

    def note(descriptor):
        flushed.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), final.exists()))

    monkeypatch.setattr(os, "fsync", note)
    save(tmp_path, [{}], fsync=fsync)
    if not fsync:
        assert flushed == []
        return
    *before, (last, is_named) = flushed
    assert is_named and last == final.parent  # the name itself
    (temporary,) = {path.relative_to(final.parent).parts[0] for path, _ in before}
    assert temporary.startswith("1.") and not any(is_named for _, is_named in before)
    of_orbax = set(map(Path, digests.NOT_LISTED)) - {Path(digests.MANIFEST)}  # written at the end
    written = {path.relative_to(final) for path in (final, *final.rglob("*"))} - of_orbax
    assert {path.relative_to(final.parent / temporary) for path, _ in before} >= written


def test_a_state_may_change_while_it_is_being_saved(tmp_path):
    """The next step reuses the memory of a state that is still being written."""
    state = make_state()
    expected = jax.tree.map(np.array, state.params)
    with Checkpoints(tmp_path, dataclasses.replace(CONFIG, overlap=1)) as checkpoints:
        checkpoints.save(7, state, {})
        jax.tree.map(lambda leaf: leaf.delete(), state)
        restored = checkpoints.restore(7, abstract(make_state()))
    assert_same(restored.params, jax.tree.map(jnp.asarray, expected))


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_overlap_limits_how_far_a_run_gets_ahead_of_a_save(tmp_path, monkeypatch, overlap):
    record, may_end, reached = digests.record, threading.Event(), []

    def slowly(directory):
        assert may_end.wait(60)
        record(directory)

    def run():
        with Checkpoints(tmp_path, dataclasses.replace(CONFIG, overlap=overlap)) as checkpoints:
            for step in range(7, 13):
                reached.append(step)
                checkpoints.after_step(step)
                if step == 7:
                    checkpoints.save(step, make_state(), {})
                if step == 7 + overlap:
                    assert saved_steps(tmp_path) == [7]

    monkeypatch.setattr(digests, "record", slowly)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(run)
        # As soon as it stands still, which it must not earlier and cannot later.
        while not running.done() and 7 + overlap not in reached:
            time.sleep(0.01)
        time.sleep(0.2)
        assert reached[-1] == 7 + overlap
        assert saved_steps(tmp_path) == []
        may_end.set()
        running.result()
    assert reached[-1] == 12


@pytest.mark.parametrize("overlap", [0, 10_000])
def test_a_failed_save_deletes_no_older_checkpoint(tmp_path, monkeypatch, overlap):
    """With keep=1, and at whatever point the loop learns of the failure."""
    config = dataclasses.replace(CONFIG, keep=1, overlap=overlap)

    def full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for trial in range(10):
        workdir = tmp_path / str(trial)
        with contextlib.suppress(SaveFailedError), Checkpoints(workdir, config) as checkpoints:
            checkpoints.save(10, make_state(), {})
            checkpoints.wait()
            with monkeypatch.context() as patched:
                patched.setattr(digests, "record", full)
                with pytest.raises(SaveFailedError, match=r"step 20 .* No space left"):
                    checkpoints.save(20, make_state(), {})
                    for step in range(20, 5_000):
                        checkpoints.after_step(step)
                        time.sleep(0.0005)
        assert saved_steps(workdir) == [10]


def test_the_reason_of_a_failed_save_is_the_system_error():
    told = (
        'RESOURCE_EXHAUSTED: Error writing "step/0" in OCDBT database at local file "d/": Failed '
        "to write 352931 bytes to file 4: File too large [os_error_code='27']"
    )
    assert checkpoint_manager._reason(ValueError(told)) == "File too large"
    assert checkpoint_manager._reason(ValueError("one\n two")) == "one two"


def test_the_newest_are_kept(tmp_path):
    assert save(tmp_path, [{}] * 5, keep=2) == [4, 5]


def test_regular_checkpoints_are_kept_beside_the_newest(tmp_path):
    """The regular steps are 3, 6 and 9; a rollback needs the last two of them."""
    assert save(tmp_path, [{}] * 11, keep=2, every=3) == [6, 9, 10, 11]


def test_only_regular_checkpoints_are_rolled_back_to(tmp_path):
    with Checkpoints(tmp_path, dataclasses.replace(CONFIG, keep=2, every=3)) as checkpoints:
        for step in range(1, 12):
            checkpoints.save(step, make_state(step=step), {})
        found = [checkpoints.regular_before(step, print) for step in (11, 9, 8, 6, 5)]
        assert found == [9, 9, 6, 6, None]
        checkpoints.forget_after(6)
    assert saved_steps(tmp_path) == [6]


def test_a_step_is_saved_once(tmp_path):
    with Checkpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(1, make_state(seed=1), {})
        checkpoints.save(1, make_state(seed=2), {})
        assert_same(checkpoints.restore(1, abstract(make_state())), make_state(seed=1))


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_the_best_is_kept_beside_the_newest(tmp_path, mode, best):
    scores = [{METRIC: score, "eval/dates/loss": 0.0} for score in (0.5, 0.9, 0.1, 0.6, 0.4)]
    assert save(tmp_path, scores, keep=1, best_metric=METRIC, best_mode=mode) == [best, 5]


def test_checkpoints_without_a_score_are_never_the_best(tmp_path):
    scores = [{}, {METRIC: 0.2}, {}, {METRIC: 0.1}, {}]
    assert save(tmp_path, scores, keep=1, best_metric=METRIC) == [2, 5]


def test_the_best_checkpoint_survives_a_restart(tmp_path):
    options = dict(keep=1, best_metric=METRIC)
    save(tmp_path, [{METRIC: 0.9}, {METRIC: 0.2}], **options)
    with Checkpoints(tmp_path, dataclasses.replace(CONFIG, **options)) as checkpoints:
        checkpoints.save(3, make_state(), {METRIC: 0.5})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "3"]


def test_parameters_load_into_a_model_with_another_head(tmp_path, caplog):
    save(tmp_path, [{}, {METRIC: 0.5}], best_metric=METRIC)
    caplog.clear()
    ours = make_params(seed=99, classes=3)
    ours["pooler"] = {"kernel": jnp.ones((2, 2))}
    merged, new, _ = load_params(str(tmp_path), ours)
    theirs = make_params(seed=2)
    assert new == ["classes/bias", "classes/kernel", "pooler/kernel"]
    assert_same(merged["backbone"], theirs["backbone"])
    assert_same(merged["classes"], ours["classes"])
    assert_same(merged["pooler"], ours["pooler"])
    assert caplog.records == [], "orbax has nothing to warn about"


def test_parameters_are_loaded_in_the_requested_dtype(tmp_path):
    save(tmp_path, [{}])
    ours = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), make_params(seed=99))
    merged, new, _ = load_params(str(tmp_path), ours)
    assert new == []
    expected = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), make_params(seed=1))
    assert_same(merged, expected)


def test_a_step_can_be_named(tmp_path):
    save(tmp_path, [{}, {}, {}], keep=3)
    merged, _, _ = load_params(f"{tmp_path}:2", make_params(seed=99))
    assert_same(merged, make_params(seed=2))
    assert find_checkpoint(f"{tmp_path}:2") == (tmp_path / "checkpoints", 2)
    assert find_checkpoint(str(tmp_path)) == (tmp_path / "checkpoints", 3)


def test_loading_missing_checkpoints_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"init_from=.*none: no checkpoints/ in .*none;"):
        load_params(str(tmp_path / "none"), make_params(0))
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no such checkpoint; steps saved there: none"):
        load_params(str(tmp_path / "empty"), make_params(0))
    save(tmp_path, [{}, {}, {}])
    with pytest.raises(ConfigError, match="no such checkpoint; steps saved there: 2, 3"):
        load_params(f"{tmp_path}:1", make_params(0))
    with pytest.raises(ConfigError, match="none of its parameters fits this model"):
        load_params(str(tmp_path), {"other": {"kernel": jnp.ones((3, 3))}})


@pytest.mark.parametrize("ema", [True, False])
def test_parameters_or_their_moving_average_are_read_alone(tmp_path, ema, caplog):
    save(tmp_path, [{}, {METRIC: 0.5}], best_metric=METRIC)
    caplog.clear()
    found = read_params(tmp_path, [2], abstract(make_params(seed=99)), ema=ema)
    assert_same(found, make_params(seed=2 + 3 if ema else 2))
    assert caplog.records == [], "orbax has nothing to warn about"


@pytest.mark.parametrize("ema", [True, False])
def test_the_mean_of_checkpoints_is_taken_in_float32(tmp_path, ema):
    save(tmp_path, [{}] * 3, keep=3)
    found = read_params(tmp_path, [1, 2, 3], abstract(make_params(seed=99)), ema=ema)
    each = [make_params(seed + 3 if ema else seed) for seed in (1, 2, 3)]

    def mean(*leaves):
        total = leaves[0].astype(jnp.float32)
        for leaf in leaves[1:]:
            total += leaf.astype(jnp.float32)
        return (total / 3).astype(leaves[0].dtype)

    assert_same(found, jax.tree.map(mean, *each))


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_best_step_finds_the_best_saved_checkpoint(tmp_path, mode, best):
    options = dict(best_metric=METRIC, best_mode=mode)
    scores = [{METRIC: 0.5}, {METRIC: 0.9}, {METRIC: 0.1}, {}]
    assert save(tmp_path, scores, keep=4, **options) == [1, 2, 3, 4]
    assert best_step(tmp_path, dataclasses.replace(CONFIG, **options)) == best
    other = dataclasses.replace(CONFIG, best_metric="eval/dates/loss")
    assert best_step(tmp_path, other) is None


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_first_of_equally_good_checkpoints_is_the_best(tmp_path, mode):
    options = dict(best_metric=METRIC, best_mode=mode)
    worse = {METRIC: 0.1 if mode == "max" else 0.9}
    scores = [{METRIC: 0.5}, worse, {METRIC: 0.5}, worse]
    assert save(tmp_path, scores, keep=1, **options) == [1, 4]
    assert save(tmp_path / "all", scores, keep=4, **options) == [1, 2, 3, 4]
    for workdir in (tmp_path, tmp_path / "all"):
        assert best_step(workdir, dataclasses.replace(CONFIG, **options)) == 1


def test_finding_the_best_step_does_not_disturb_a_running_job(tmp_path):
    save(tmp_path, [{METRIC: 0.5}, {METRIC: 0.9}], keep=2, best_metric=METRIC)
    unfinished = tmp_path / "checkpoints" / "3.orbax-checkpoint-tmp"
    unfinished.mkdir()
    config = dataclasses.replace(CONFIG, keep=1, best_metric=METRIC)
    assert best_step(tmp_path, config) == 2
    assert saved_steps(tmp_path) == [1, 2]
    assert unfinished.exists()


def test_a_directory_without_checkpoints_has_no_steps(tmp_path):
    assert saved_steps(tmp_path) == []


def test_damaged_parameters_are_neither_used_nor_started_from(tmp_path):
    save(tmp_path, [{}])
    files = (tmp_path / "checkpoints" / "1" / "params").rglob("*")
    path = max(filter(Path.is_file, files), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for read in (
        lambda: read_params(tmp_path, [1], abstract(make_params(0)), ema=False),
        lambda: load_params(str(tmp_path), make_params(0)),
    ):
        with pytest.raises(
            ConfigError, match=f"{path} has changed since it was written; put a good copy"
        ):
            read()
