"""Early stopping: a run ends when its evaluations no longer improve."""

import json
import math
from pathlib import Path


class Patience:
    """Counts the evaluations since the best one."""

    def __init__(self, limit: int, metric: str, mode: str, scores: dict[int, float]):
        """A `limit` of 0 never ends a run. `scores` are the scores so far, by step."""
        self.limit, self.metric = limit, metric
        self._sign = 1 if mode == "max" else -1
        self._scores = scores

    @property
    def best_step(self) -> int | None:
        """The first step with the best score; None without a score. NaN is never the best."""
        steps = [step for step, score in self._scores.items() if not math.isnan(score)]
        return max(steps, key=lambda step: (self._sign * self._scores[step], -step), default=None)

    @property
    def is_out(self) -> bool:
        """Whether there were `limit` evaluations since the best one."""
        since = sum(step > (self.best_step or 0) for step in self._scores)
        return bool(self.limit) and since >= self.limit

    def note(self, step: int, scores: dict[str, float]) -> bool:
        """Adds an evaluation; returns whether it is the best. `scores` is {} if it failed."""
        if not self.limit or self.metric not in scores:
            return False
        self._scores[step] = scores[self.metric]
        return self.best_step == step

    def forget_after(self, step: int) -> None:
        """Drops later scores: the run rolls back to that step."""
        self._scores = {each: score for each, score in self._scores.items() if each <= step}


def recorded_scores(workdir: Path, metric: str, last_step: int) -> dict[int, float]:
    """Returns a metric by step, up to `last_step`, from metrics.jsonl.

    If a step has two values, the later one counts.
    """
    scores = {}
    path = workdir / "metrics.jsonl"
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            if metric in record and record["step"] <= last_step:
                scores[record["step"]] = float(record[metric])
        except (ValueError, LookupError, TypeError):
            continue  # a line that a crash cut off
    return scores
