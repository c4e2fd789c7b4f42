"""Ranking metrics against plain loops in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from evaluation.ranking import ranking_scores, ranking_sums, target_ranks

ROWS, COLUMNS, VOCABULARY = 40, 5, 12
ITEMS = np.arange(4, VOCABULARY)  # below: special ids
MASK = 3


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    items = np.stack([rng.permutation(ITEMS)[:COLUMNS] for _ in range(ROWS)]).astype(np.int32)
    inputs, weights = items.copy(), np.zeros((ROWS, COLUMNS), np.float32)
    places = rng.integers(0, COLUMNS, ROWS)
    inputs[np.arange(ROWS), places], weights[np.arange(ROWS), places] = MASK, 1
    weights[-3:] = 0  # rows that only fill up a batch
    logits = rng.normal(size=(ROWS, COLUMNS, VOCABULARY)).astype(np.float32)
    return dict(inputs=inputs, targets=items, weights=weights), logits, places


def by_loops(batch, logits, places):
    """The rank of each target, from a sorted list."""
    ranks = []
    for row, place in enumerate(places):
        if not batch["weights"][row].any():
            continue
        scores = logits[row, place]
        new = [item for item in ITEMS if item not in batch["inputs"][row]]
        best = sorted(new, key=lambda item: -scores[item])
        ranks.append(1 + best.index(batch["targets"][row, place]))
    return np.array(ranks)


def arrays(batch):
    return {name: jnp.asarray(each) for name, each in batch.items()}


def test_scores_equal_loops(made):
    batch, logits, places = made
    ranks = by_loops(batch, logits, places)
    assert len(set(ranks)) > 2
    metrics = ("hit@1", "hit@5", "ndcg@5", "mrr")
    totals = ranking_sums(metrics, ITEMS, VOCABULARY)(
        {"logits": jnp.asarray(logits)}, arrays(batch)
    )
    expected = {
        "hit@1": (ranks == 1).mean(),
        "hit@5": (ranks <= 5).mean(),
        "ndcg@5": np.where(ranks <= 5, 1 / np.log2(ranks + 1), 0).mean(),
        "mrr": (1 / ranks).mean(),
    }
    found = {name: float(total) / float(count) for name, (total, count) in totals.items()}
    assert found == pytest.approx(expected, rel=1e-6)


def test_ndcg_equals_scikit_learn(made):
    import sklearn.metrics

    batch, logits, places = made
    ranks = by_loops(batch, logits, places)
    relevant = np.eye(len(ITEMS))[ranks - 1]
    scores = np.tile(-np.arange(len(ITEMS)), (len(ranks), 1))
    ours = ranking_scores(["ndcg@5"], jnp.asarray(ranks, jnp.float32))["ndcg@5"]
    assert float(ours.mean()) == pytest.approx(sklearn.metrics.ndcg_score(relevant, scores, k=5))


def test_ties_and_nan_rank_before_the_target(made):
    batch, logits, _ = made
    candidates = jnp.asarray(np.isin(np.arange(VOCABULARY), ITEMS))
    for value in (0.0, np.nan):
        scores = jnp.full(logits.shape, value, jnp.float32)
        ranks, counts = target_ranks(scores, arrays(batch), candidates)
        np.testing.assert_array_equal(np.asarray(ranks)[:-3], len(ITEMS) - COLUMNS + 1)
        np.testing.assert_array_equal(counts, [True] * (ROWS - 3) + [False] * 3)


@pytest.mark.parametrize("target", [2, 5], ids=["unknown", "shown in the row"])
def test_targets_that_are_not_ranked_are_misses(made, target):
    batch, logits, _ = made
    inputs = np.where(batch["weights"] > 0, MASK, 5)
    rows = {**batch, "inputs": inputs, "targets": np.full_like(batch["targets"], target)}
    candidates = jnp.asarray(np.isin(np.arange(VOCABULARY), ITEMS))
    ranks, _ = target_ranks(jnp.asarray(logits), arrays(rows), candidates)
    assert np.isinf(np.asarray(ranks)).all()
    scores = ranking_scores(["mrr", "hit@100", "ndcg@100"], ranks)
    assert all(float(each.sum()) == 0 for each in scores.values())
