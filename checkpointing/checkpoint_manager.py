"""Checkpoints of a run: save in the background, wait, verify, find and restore."""

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import broadcast_one_to_all
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    LatestN,
    PreservationPolicy,
)

from checkpointing import digests, run_identity
from checkpointing.hub_run import open_hub_run
from experiment.schema import ConfigError
from storage.hub import is_hub_address
from storage.mirror import checkpoint_directory, open_run_directory, source_of
from storage.object_store import as_os_errors, is_remote, move
from training.config import CheckpointConfig
from training.exits import SaveFailedError
from training.processes import is_primary
from training.train_state import TrainState

DIRECTORY = "checkpoints"
# Fields of TrainState that checkpoints store under another name.
FIELDS = {"guard": "anomalies"}
LISTED = 3  # times that an empty directory is listed
CORRUPT = "corrupt"  # the directory for damaged checkpoints


@dataclasses.dataclass
class LatestRegular(PreservationPolicy):
    """Keeps the last `n` checkpoints whose step is a multiple of `every`.

    Checkpoints saved in between, by a run that was asked to stop, do not replace them: a rollback
    finds the same checkpoints whether the run was interrupted or not.
    """

    n: int
    every: int

    def should_preserve(self, checkpoints, *, context) -> Sequence[bool]:
        regular = [each.step for each in checkpoints if not each.step % self.every]
        return [each.step in regular[-self.n :] for each in checkpoints]


@dataclasses.dataclass
class FirstBest(PreservationPolicy):
    """Keeps the checkpoint with the best score; of equal scores the first, as `Patience` does."""

    metric: str
    mode: str

    def should_preserve(self, checkpoints, *, context) -> Sequence[bool]:
        metrics = {each.step: each.metrics or {} for each in checkpoints}
        best = _first_best(metrics, self.metric, self.mode)
        return [best is not None and each.step == best[0] for each in checkpoints]


class Checkpoints:
    """The checkpoints under a workdir. Leaving the context waits for the current save."""

    def __init__(
        self,
        workdir: str | Path,
        config: CheckpointConfig,
        before_commit: Callable[[], None] = lambda: None,
    ):
        """`before_commit` is called when all files of a checkpoint but its mark are written."""
        self._directory = checkpoint_directory(workdir, DIRECTORY)
        self._workdir = Path(workdir)
        self._config, self._before_commit = config, before_commit
        # In a bucket, an object named commit_success.txt takes the place of the final name.
        self._suffix = "" if source_of(workdir) else ocp.utils.TMP_DIR_SUFFIX
        self._saving: int | None = None  # the step that is being saved
        policies, best = [LatestN(config.keep)], {}
        if config.every:
            policies.append(LatestRegular(config.keep, config.every))
        if config.best_metric:
            policies.append(FirstBest(config.best_metric, config.best_mode))
            # Without these, Orbax does not write the metrics, and a resumed run does not know
            # which checkpoint is the best.
            best = dict(
                best_fn=lambda metrics: metrics[config.best_metric], best_mode=config.best_mode
            )
        self._manager = ocp.CheckpointManager(
            self._directory,
            item_names=("params", "rest"),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
                # Called after the last write and before the directory gets its final name, or in
                # a bucket the object that marks it as complete.
                async_options=ocp.AsyncOptions(post_finalization_callback=self._record_digests),
                **best,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, exception, traceback) -> None:
        # Without this, a save that fails in the background would go unnoticed.
        try:
            self.wait()
        except SaveFailedError as error:
            if exception is None:
                raise
            print(error, file=sys.stderr)  # the run already ends with another error
        try:
            self._manager.close()
        except Exception:  # that of a save which has failed: Orbax may raise it once more
            if exception is None:
                raise

    def wait(self) -> None:
        """Waits until the current save is on disk; raises SaveFailedError if it fails."""
        self._run_save(self._manager.wait_until_finished)
        if self._saving is not None and self._config.fsync and not is_remote(self._directory):
            digests.flush_entry(self._directory)  # the checkpoint's final name
        self._saving = None

    def after_step(self, step: int) -> None:
        """Waits if the run is `overlap` steps ahead of the current save.

        Raises SaveFailedError if the save has failed in the meantime.
        """
        if self._saving is None:
            return
        # Do not call `check_for_errors` here. It takes the error away from Orbax's own thread,
        # which would then treat the failed save as good and delete older checkpoints.
        if step >= self._saving + self._config.overlap or not self._manager.is_saving_in_progress():
            self.wait()

    def _run_save(self, action: Callable[..., None], *args, **named) -> None:
        try:
            action(*args, **named)
        except Exception as error:  # anything that a file system or tensorstore raises
            step, self._saving = self._saving, None
            remedy = "make room"
            if is_remote(self._directory):
                remedy = "check the network and your credentials"
            raise SaveFailedError(
                f"the checkpoint of step {step} could not be written to {self._directory} "
                f"({_reason(error)}); older ones are intact: {remedy} and run the same "
                "command again"
            ) from error

    def _record_digests(self) -> None:
        directory = self._directory / f"{self._saving}{self._suffix}"
        run_identity.write(self._workdir, directory)
        digests.record(directory)
        if self._config.fsync and not is_remote(directory):
            digests.flush(directory)
        self._before_commit()

    def latest_step(self) -> int | None:
        """Returns the newest step on disk, verified or not; None if there is none."""
        return self._manager.latest_step()

    def newest_valid(self, warn: Callable[[str], None]) -> int | None:
        """Returns the newest step whose files are intact; None if there is no checkpoint.

        Damaged checkpoints are moved to CORRUPT, with a warning. A run whose config was changed by
        hand since that checkpoint is refused.
        """
        step = self._first_valid(sorted(self._manager.all_steps(), reverse=True), warn)
        if step is not None:
            run_identity.refuse_changed_config(self._workdir, self._directory / str(step))
        return step

    def regular_before(self, step: int, warn: Callable[[str], None]) -> int | None:
        """Like `newest_valid`, among the regular checkpoints up to `step`."""
        self.wait()
        steps, every = sorted(self._manager.all_steps(), reverse=True), self._config.every
        regular = [each for each in steps if every and not each % every]
        return self._first_valid([each for each in regular if each <= step], warn)

    def _first_valid(self, steps: Sequence[int], warn: Callable[[str], None]) -> int | None:
        faults = []
        if is_primary():
            for step in steps:
                if not (fault := digests.fault(self._directory / str(step))):
                    break
                faults.append(fault)
        # One process verifies; all start from the same checkpoint.
        bad = int(broadcast_one_to_all(np.int32(len(faults))))
        if not bad:
            return steps[0] if steps else None
        if bad == len(steps):
            raise ConfigError(
                f"all checkpoints in {self._directory} are damaged ({'; '.join(faults)}); "
                "put a good copy there, or choose another --workdir"
            )
        for fault, step in zip(faults, steps, strict=False):
            warn(
                f"{fault}: continuing from step {steps[bad]} instead of {step}, which is moved to "
                f"{CORRUPT}/"
            )
        self._put_aside(steps[:bad])
        return steps[bad]

    def _put_aside(self, steps: Sequence[int]) -> None:
        aside = self._directory.parent / CORRUPT
        if is_primary():
            is_in_bucket = is_remote(self._directory)
            if not is_in_bucket:  # which has no directories
                aside.mkdir(exist_ok=True)
            for step in steps:
                target = aside / str(step)
                while target.exists():
                    target = target.with_name(f"{target.name}-again")
                if is_in_bucket:
                    move(self._directory / str(step), target)
                else:
                    (self._directory / str(step)).rename(target)
        self._manager.reload()

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Saves the state; with `overlap`, in the background. `metrics` may be empty."""
        if step in self._manager.all_steps():
            return
        self.wait()
        self._saving = step
        best_metric = self._config.best_metric
        self._run_save(
            self._manager.save,
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                rest=ocp.args.StandardSave(_rest(state)),
            ),
            metrics={best_metric: metrics[best_metric]} if best_metric in metrics else None,
            force=True,
        )
        self.after_step(step)

    def forget_after(self, step: int) -> None:
        """Deletes the checkpoints after `step`, because the run rolls back to it."""
        self.wait()
        for later in [each for each in self._manager.all_steps() if each > step]:
            self._manager.delete(later)

    def best(self) -> tuple[int, float] | None:
        """Returns the best step on disk, by `best_metric`, and its score; None without scores."""
        self.wait()
        return _best_of(self._manager, self._config)

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Returns the state saved at `step`, with the shardings of `abstract`."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(abstract.params),
                rest=ocp.args.StandardRestore(_rest(abstract)),
            ),
        )
        rest = {FIELDS.get(name, name): part for name, part in restored["rest"].items()}
        return TrainState(params=restored["params"], **rest)


def _rest(state: TrainState) -> dict:
    """Returns all but the parameters, which are a separate item: they can be loaded alone."""
    stored = ("step", "opt_state", "ema", "guard")
    stored += () if state.prune is None else ("prune",)
    return {name: getattr(state, FIELDS.get(name, name)) for name in stored}


def _reason(error: Exception) -> str:
    """Returns the operating system's message, at the end of tensorstore's long error text."""
    text = re.sub(r"\s+", " ", str(error))
    found = re.search(r"([^:]+) \[os_error_code", text)
    return found.group(1).strip() if found else text[:300]


def saved_steps(workdir: str | Path) -> list[int]:
    """Returns the steps of all complete checkpoints, in order."""
    directory = checkpoint_directory(workdir, DIRECTORY)
    with as_os_errors():
        if not directory.is_dir():
            return []
        # A list that is made while a run saves and prunes may lack the new and the old checkpoint.
        for _ in range(LISTED):
            if steps := sorted(ocp.utils.checkpoint_steps(directory)):
                break
        return steps


def best_step(workdir: str | Path, config: CheckpointConfig) -> int | None:
    """Returns the step of the best checkpoint by `best_metric`; None if none was scored."""
    # Unlike the manager of `Checkpoints`, this one deletes nothing: the run may still be going on.
    options = ocp.CheckpointManagerOptions(create=False, best_fn=lambda metrics: 0.0)
    directory = checkpoint_directory(workdir, DIRECTORY)
    with ocp.CheckpointManager(directory, options=options) as manager:
        best = _best_of(manager, config)
    return best[0] if best else None


def _best_of(manager: ocp.CheckpointManager, config: CheckpointConfig) -> tuple[int, float] | None:
    metrics = {step: manager.metrics(step) or {} for step in manager.all_steps()}
    return _first_best(metrics, config.best_metric, config.best_mode)


def _first_best(
    metrics: Mapping[int, Mapping[str, float]], metric: str, mode: str
) -> tuple[int, float] | None:
    """Returns the first step with the best score, and the score. NaN is never the best."""
    scores = {step: known[metric] for step, known in sorted(metrics.items()) if metric in known}
    scores = {step: score for step, score in scores.items() if not math.isnan(score)}
    pick = max if mode == "max" else min  # both return the first of equal scores
    best = pick(scores, key=scores.get, default=None)
    return None if best is None else (best, scores[best])


def refuse_damaged(checkpoint: Path) -> None:
    """Refuses a checkpoint whose files do not match their digests."""
    if fault := digests.fault(checkpoint):
        raise ConfigError(f"{fault}; put a good copy there, or choose another step")


def find_checkpoint(run: str, key: str = "init_from") -> tuple[Path, int]:
    """Returns directory and step of the checkpoint WORKDIR or WORKDIR:STEP; refuses a missing one.

    `key` is the config key in error messages. The parent of the directory has the run's records; if
    the run is in a bucket, `checkpoint_directory` says where its checkpoints are. A model on the
    hub is imported first.
    """
    workdir, step = re.fullmatch(r"(.*?)(?::(\d+))?", run).groups()
    if is_hub_address(workdir):
        workdir = str(open_hub_run(key, workdir))
    run_directory = open_run_directory(key, workdir)
    if not checkpoint_directory(run_directory, DIRECTORY).is_dir():
        raise ConfigError(f"{key}={run}: no {DIRECTORY}/ in {workdir}; give a run's workdir")
    steps = saved_steps(workdir)
    if not steps or (step and int(step) not in steps):
        listed = ", ".join(map(str, steps)) or "none"
        raise ConfigError(f"{key}={run}: no such checkpoint; steps saved there: {listed}")
    return run_directory.resolve() / DIRECTORY, int(step) if step else steps[-1]
