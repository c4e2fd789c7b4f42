"""Which score sums up a run, and whether more or less of it is better."""

from collections.abc import Iterable

# Of several scores on one eval set, the first of these is the one that people ask for.
PREFERRED = (
    "bleu", "chrf", "rougeL", "exact_match", "ndcg@10", "hit@10", "mrr", "entity_f1", "squad_f1",
    "spearman",
    "pearson", "bits_per_byte", "perplexity", "accuracy", "loss",
)  # fmt: skip
LESS_IS_BETTER = (
    "loss", "nll", "mae", "perplexity", "bits_per_byte", "absolute_error", "ece", "failures",
)  # fmt: skip


def mode_of(metric: str) -> str:
    """Returns "min" if less of the metric is better, else "max"."""
    return "min" if metric.endswith(LESS_IS_BETTER) else "max"


def main_metric(names: Iterable[str], best_metric: str = "") -> str:
    """The score of a run among `names`: `best_metric`, or the preferred one of the first set.

    Names are those of metrics.jsonl, in their order there. "" if none is a score.
    """
    scores = [name for name in names if name.startswith("eval/") and name.count("/") >= 2]
    if best_metric in scores:
        return best_metric
    if not scores:
        return ""
    first = scores[0].rpartition("/")[0]
    found = {name.rpartition("/")[2]: name for name in scores if name.rpartition("/")[0] == first}
    return next((found[metric] for metric in PREFERRED if metric in found), scores[0])
