"""Ranking metrics: the rank of the masked item among the items that a row does not show."""

from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

Totals = dict[str, tuple[Array, Array]]  # (sum, count) of each metric


def target_ranks(
    logits_bxv: Array, batch: Mapping[str, Array], candidates_v: Array
) -> tuple[Array, Array]:
    """The rank of each row's masked item, from 1; and whether the row counts (B,).

    The ranking has the ids in `candidates_v` that the row does not show. Ties and NaN count as
    ranked before the target. A target that is not ranked, such as an unknown item, has rank
    infinity. One of the X targets of a row has a positive weight.
    """
    counts_bx = batch["weights"] > 0
    place_b1 = counts_bx.argmax(axis=1)[:, None]
    target_b1 = jnp.take_along_axis(batch["targets"], place_b1, axis=1)
    scores_bv = jnp.take_along_axis(logits_bxv, place_b1[..., None], axis=1)[:, 0]
    rows_b1 = jnp.arange(len(target_b1), dtype=jnp.int32)[:, None]
    shown_bv = jnp.zeros(scores_bv.shape, bool).at[rows_b1, batch["inputs"]].set(True)
    ranked_bv = candidates_v & ~shown_bv
    own_b1 = jnp.take_along_axis(scores_bv, target_b1, axis=1)
    rank_b = (ranked_bv & ~(scores_bv < own_b1)).sum(axis=1).astype(jnp.float32)
    is_ranked_b = jnp.take_along_axis(ranked_bv, target_b1, axis=1)[:, 0]
    return jnp.where(is_ranked_b, rank_b, jnp.inf), counts_bx.any(axis=1)


def ranking_scores(metrics: Sequence[str], rank_b: Array) -> dict[str, Array]:
    """The score of each row by name: mrr, hit@k and ndcg@k with one relevant item (B,)."""
    scores = {}
    for metric in metrics:
        name, _, k = metric.partition("@")
        match name:
            case "hit":
                scores[metric] = (rank_b <= int(k)).astype(jnp.float32)
            case "ndcg":
                scores[metric] = jnp.where(rank_b <= int(k), 1 / jnp.log2(1 + rank_b), 0)
            case "mrr":
                scores[metric] = 1 / rank_b
    return scores


def ranking_sums(
    metrics: Sequence[str], item_ids: np.ndarray, vocab_size: int
) -> Callable[[Mapping[str, Array], Mapping[str, Array]], Totals]:
    """The function (outputs, batch) -> sums of these metrics, for the evaluation step."""
    candidates_v = np.zeros(vocab_size, bool)
    candidates_v[item_ids] = True

    def totals(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Totals:
        rank_b, counts_b = target_ranks(outputs["logits"], batch, jnp.asarray(candidates_v))
        count = counts_b.sum().astype(jnp.float32)
        scores = ranking_scores(metrics, rank_b)
        return {name: (jnp.where(counts_b, each, 0).sum(), count) for name, each in scores.items()}

    return totals
