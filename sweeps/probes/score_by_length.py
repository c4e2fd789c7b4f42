"""Scores of the answers to held-out sources by the length of the source, in tokens."""

import bisect

import numpy as np

from evaluation.eval_details import EvalDetails
from evaluation.metrics import text_scores
from experiment.sections import Experiment
from sweeps.probes.probe import Probe, ProbedRun

# Upper edges of the bins. They do not depend on the data, so that seeds and variants share them.
EDGES = tuple(range(4, 33, 4)) + tuple(
    edge for power in range(5, 16) for edge in (2**power * 3 // 2, 2 ** (power + 1))
)


def problem(experiment: Experiment) -> str:
    """Why the experiment is refused ("": it is not): it writes no answers."""
    spec = experiment.task.objective_spec
    is_pair = spec.has_source or experiment.data.example_kind == "pairs"
    if spec.head == "language_model" and is_pair:
        return ""
    return f"task.objective={experiment.task.objective} on {experiment.data.source} has no answers"


def compute(probed: ProbedRun) -> dict[str, float]:
    """Exact match, BLEU if the config has it, and the number of rows, in each bin."""
    experiment = probed.run.experiment
    details = EvalDetails(experiment.task.objective, probed.run.labels, ())
    eval_set, _ = probed.evaluate(details)
    answers = details.answers
    references = [each for each in eval_set.references if each is not None]
    found = {}
    for edge, rows in bins([each.length for each in answers]).items():
        found[f"rows/{edge}"] = float(len(rows))
        found[f"exact_match/{edge}"] = float(np.mean([answers[row].is_exact for row in rows]))
        if "bleu" in experiment.eval.metrics:
            texts = [answers[row].text for row in rows], [references[row] for row in rows]
            found[f"bleu/{edge}"] = text_scores(["bleu"], *texts)["bleu"]
    return found


def bins(lengths: list[int]) -> dict[int, list[int]]:
    """The numbers of the rows in each bin that has some, by its upper edge."""
    found: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        place = min(bisect.bisect_left(EDGES, length), len(EDGES) - 1)
        found.setdefault(EDGES[place], []).append(row)
    return dict(sorted(found.items()))


PROBE = Probe(compute, problem, keys=("exact_match/*", "bleu/*", "rows/*"))
