"""The `prune` section of a config: which weights a run sets to zero, how many, and when."""

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiment.schema import Count, PositiveInt
from training.config import FinetuneConfig, HalfOpenUnit, RunConfig

if TYPE_CHECKING:
    from model.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class PruneConfig:
    """The keys of `prune`. configs/default.py explains each key and sets its default."""

    method: Literal["none", "magnitude", "2:4", "heads"]
    share: HalfOpenUnit
    scope: Literal["matrix", "global"]
    begin_step: PositiveInt
    end_step: Count
    every: PositiveInt
    parameters: str

    def problems(self) -> Iterator[str]:
        try:
            re.compile(self.parameters)
        except re.error as error:
            yield (
                f"prune.parameters={self.parameters!r} is not a regular expression ({error}); "
                "correct it"
            )
        if self.method == "none" and self.share:
            yield (
                f"prune.share={self.share:g} does nothing with prune.method=none; choose magnitude "
                "or heads, or set it to 0"
            )
        if self.method in ("magnitude", "heads") and not self.share:
            yield f"prune.method={self.method} needs a share to prune; set prune.share above 0"
        if self.method == "2:4":
            if self.share not in (0, 0.5):
                yield (
                    f"prune.method=2:4 prunes two weights of four, not prune.share={self.share:g}; "
                    "set it to 0"
                )
            if self.end_step:
                yield (
                    f"prune.method=2:4 prunes once, at prune.begin_step={self.begin_step}; set "
                    f"prune.end_step={self.end_step} to 0"
                )
        elif self.end_step and self.end_step < self.begin_step:
            yield (
                f"prune.end_step={self.end_step} is before prune.begin_step={self.begin_step}; "
                "make it larger"
            )

    def last_step(self, steps: int) -> int:
        """Returns the step of the last pruning, for a run of this many steps."""
        if self.method == "2:4":
            return self.begin_step
        return self.end_step or max(self.begin_step, steps // 2)


@dataclasses.dataclass(frozen=True)
class PruneSchedule:
    """The steps at which weights are pruned, and the share that is zero from each step on."""

    steps: np.ndarray  # int, ascending
    shares: np.ndarray  # float64, ascending

    def counts(self, size: int) -> np.ndarray:
        """Returns how many of `size` weights are zero: before the first step, and from each on."""
        return np.rint(np.concatenate([[0.0], self.shares]) * size).astype(np.int32)


def prune_schedule(config: PruneConfig, steps: int) -> PruneSchedule:
    """Returns the cubic schedule of Zhu and Gupta (arXiv:1710.01878), for a run of `steps` steps.

    s(t) = share * (1 - (1 - (t - begin) / (end - begin)) ** 3). It begins at 0. If begin and end
    are the same step, all is pruned at once.
    """
    begin, end = config.begin_step, config.last_step(steps)
    share = 0.5 if config.method == "2:4" else config.share
    at = np.append(np.arange(begin, end, config.every), end)
    left = 1 - (at - begin) / max(end - begin, 1) if end > begin else np.zeros(1)
    return PruneSchedule(at, share * (1 - left**3))


def prune_problems(
    prune: PruneConfig, run: RunConfig, finetune: FinetuneConfig, model: "TransformerConfig"
) -> Iterator[str]:
    """Yields a message for pruning that does not fit into the run or that leaves no heads."""
    if prune.method == "none":
        return
    key = "end_step" if prune.end_step else "begin_step"
    if prune.last_step(run.steps) > run.steps:
        yield (
            f"prune.{key}={getattr(prune, key)} is after the last step, steps={run.steps}, so the "
            "share is never reached; make it smaller"
        )
    if finetune.lora_rank:
        yield (
            f"prune.method={prune.method} does not go with finetune.lora_rank="
            f"{finetune.lora_rank}: adapters would fill the zeros again; set one to its default"
        )
    is_by_layer = prune.method == "heads" and prune.scope == "matrix"
    if is_by_layer and round(prune.share * model.heads) == model.heads:
        yield (
            f"prune.share={prune.share:g} leaves none of model.heads={model.heads}; lower it, "
            "or set prune.scope=global"
        )
