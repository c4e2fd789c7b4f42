"""Eval sets whose batches are on the devices; evaluates all of them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from tqdm import tqdm

from evaluation.eval_details import EvalDetails
from evaluation.evaluator import EvalSet, Evaluator, refuse_metrics
from experiment.sections import Experiment
from input_pipeline.pipeline import Data
from input_pipeline.sources.base import LazyList
from training.config import SPAN_METRICS, TEXT_METRICS
from training.mesh import put_batch, rows_of_batch


def make_eval_sets(
    names: Sequence[str], data: Data, experiment: Experiment, mesh: Mesh
) -> dict[str, EvalSet]:
    """Makes the eval sets with these names; refuses metrics that do not fit them."""
    sets = {name: _make_eval_set(name, data, experiment, mesh) for name in names}
    refuse_metrics(experiment.eval.metrics, data.labels, sets)
    return sets


def evaluate(
    evaluator: Evaluator,
    params,
    sets: Mapping[str, EvalSet],
    *,
    show_progress: bool = False,
    keep_bars: bool = True,
    between: Callable[[], None] | None = None,
    details: Mapping[str, EvalDetails] | None = None,
) -> dict[str, float]:
    """Evaluates the parameters on all sets; returns {eval/<set>/<metric>: score}.

    It calls `between` before each batch. `show_progress` draws one progress bar per set if stderr
    is a terminal. Without `keep_bars`, it erases a finished bar, which would move the bar of a
    training run. `details` collect rows, by the name of the set.
    """
    scores = {}
    for name, eval_set in sets.items():
        total = len(eval_set.batches)
        if between:
            eval_set = dataclasses.replace(eval_set, batches=_calling(between, eval_set.batches))
        if show_progress:
            bar = tqdm(
                eval_set.batches,
                f"evaluating {name}",
                total=total,
                unit="batch",
                disable=None,
                leave=keep_bars,
                dynamic_ncols=True,
            )
            eval_set = dataclasses.replace(eval_set, batches=bar)
        try:
            collecting = {"details": details[name]} if details else {}
            found = evaluator.evaluate(params, eval_set, **collecting)
        finally:
            if show_progress:
                bar.close()  # also when the evaluation is interrupted
        scores |= {f"eval/{name}/{metric}": value for metric, value in found.items()}
    return scores


def write_samples(
    prefix: Path,
    evaluator: Evaluator,
    params,
    sets: Mapping[str, EvalSet],
    data: Data,
    count: int,
) -> None:
    """Writes `count` readable outputs per set to <prefix>_<set>.txt, if there is one process."""
    if not count or jax.process_count() > 1:
        return
    prefix.parent.mkdir(exist_ok=True)
    for name, eval_set in sets.items():
        text = evaluator.samples(params, eval_set, data.eval_examples(name, count))
        prefix.with_name(f"{prefix.name}_{name}.txt").write_text(text)


def _calling(function: Callable[[], None], batches: Iterable) -> Iterator:
    """Yields the batches; calls the function before each of them."""
    for batch in batches:
        function()
        yield batch


def _make_eval_set(name: str, data: Data, experiment: Experiment, mesh: Mesh) -> EvalSet:
    size, most = experiment.eval.batch_size, experiment.eval.batches
    batches = data.eval_batches(name, size, most)
    counts_bytes = experiment.task.objective_spec.bits_per_byte
    has_target = "target" in data.eval_examples(name, 1)[0]
    references = ()
    if has_target and any(metric in TEXT_METRICS for metric in experiment.eval.metrics):
        references = _references(name, data, size, len(batches), mesh)
    if any(metric in SPAN_METRICS for metric in experiment.eval.metrics):
        references = _of_rows(data.eval_examples(name, size * len(batches)), size, mesh)
    return EvalSet(
        batches=LazyList(lambda batch: put_batch(batch, mesh), batches),
        text_bytes=data.eval_bytes(name, size, most) if counts_bytes else 0,
        has_target=has_target,
        references=references,
    )


def _references(name: str, data: Data, size: int, batches: int, mesh: Mesh) -> list[str | None]:
    """The target text of each row of each batch, not truncated; None for rows of padding."""
    texts = [example["target"] for example in data.eval_examples(name, size * batches)]
    return _of_rows(texts, size, mesh)


def _of_rows(values: Sequence[Any], size: int, mesh: Mesh) -> list[Any]:
    """The values, one for each row, in the order of the rows of batches of `size`; else None."""
    batches = -(-len(values) // size)
    values = [*values, *[None] * (size * batches - len(values))]
    rows = rows_of_batch(size, mesh)
    return [values[number * size + row] for number in range(batches) for row in rows]
