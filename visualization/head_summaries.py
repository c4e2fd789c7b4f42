"""Numbers that tell what a head of attention does: how broadly it looks, how far, and at what.

All means are over the rows (queries) that have a choice, that is, see two keys or more. A share is
the mean weight on some keys over those rows that see one of these keys. NaN: no row qualifies, or
the number makes no sense (distances in cross attention).
Axes: L layers, H heads, T queries, S keys.
"""

import dataclasses

import numpy as np

from visualization.model_view import AttentionMap, ModelView

# A head gets a label when the share of its weights reaches SHARE, or its evenness EVEN.
SHARE = 0.5
EVEN = 0.8
LABELS = {
    "previous": "previous-token",
    "following": "next-token",
    "itself": "same-token",
    "first": "first-token",
    "special": "special-token",
    "evenness": "broad",
}


@dataclasses.dataclass(frozen=True)
class HeadSummaries:
    """One number for each head of a map; every array is (L, H)."""

    entropy: np.ndarray  # of a row of weights, in nats
    evenness: np.ndarray  # entropy as a part of the largest one possible, log(visible keys)
    distance: np.ndarray  # between query and key, in tokens; in patches if there are any
    first: np.ndarray  # share of weight on the first key
    previous: np.ndarray  # on the key just before the query
    itself: np.ndarray  # on the query's own position
    following: np.ndarray  # on the key just after the query
    special: np.ndarray  # on special tokens, such as [SEP]
    gradient: np.ndarray | None = None  # share of the map's sum of |weight x gradient|

    def labels(self, layer: int, head: int) -> list[str]:
        """What the head is known for, by the thresholds SHARE and EVEN."""
        reached = {name: EVEN if name == "evenness" else SHARE for name in LABELS}
        return [
            LABELS[name] for name in LABELS if getattr(self, name)[layer, head] >= reached[name]
        ]

    def rows(self, layers: tuple[int, ...]) -> list[dict[str, object]]:
        """One dict for each head, with None for NaN. `layers` are the numbers of the L layers."""
        names = [field.name for field in dataclasses.fields(self)]
        arrays = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return [
            {
                "layer": number,
                "head": head,
                **{
                    name: None if np.isnan(values[place, head]) else float(values[place, head])
                    for name, values in arrays.items()
                },
                "labels": self.labels(place, head),
            }
            for place, number in enumerate(layers)
            for head in range(self.entropy.shape[1])
        ]


def summarize(attention: AttentionMap, view: ModelView) -> HeadSummaries:
    """Computes the summaries of all heads of one map of the view."""
    queries, keys = len(attention.queries), len(attention.keys)
    is_cross = attention.name == "cross"
    # With more keys than queries (a memory), the last keys are the queries themselves.
    offset_ts = np.arange(keys) - np.arange(queries)[:, None] - (keys - queries)
    nowhere_ts = np.zeros((queries, keys), bool)
    targets = {
        "first": np.broadcast_to(np.arange(keys) == 0, (queries, keys)),
        "previous": nowhere_ts if is_cross else offset_ts == -1,
        "itself": nowhere_ts if is_cross else offset_ts == 0,
        "following": nowhere_ts if is_cross else offset_ts == 1,
        "special": np.broadcast_to(
            np.array([key in view.special_tokens for key in attention.keys], bool), (queries, keys)
        ),
    }
    distance_ts = None if is_cross else _distances(offset_ts, view)

    found: dict[str, list[np.ndarray]] = {"entropy": [], "evenness": [], "distance": []}
    found |= {name: [] for name in targets}
    for weights_hts, visible_ts in zip(attention.weights_lhts, attention.visible_lts, strict=True):
        weights_hts = np.asarray(weights_hts, np.float32)
        count_t = visible_ts.sum(-1)
        choice_t = count_t >= 2
        entropy_ht = entropies(weights_hts)
        found["entropy"].append(_mean(entropy_ht, choice_t))
        found["evenness"].append(_mean(entropy_ht / np.log(np.maximum(count_t, 2)), choice_t))
        found["distance"].append(_mean_distance(weights_hts, distance_ts, choice_t))
        for name, target_ts in targets.items():
            rows_t = choice_t & (visible_ts & target_ts).any(-1)
            share_ht = np.einsum("hts,ts->ht", weights_hts, target_ts.astype(np.float32))
            found[name].append(_mean(share_ht, rows_t))
    arrays = {name: np.stack(values) for name, values in found.items()}
    return HeadSummaries(**arrays, gradient=_gradient_shares(attention))


def entropies(weights_hts: np.ndarray) -> np.ndarray:
    """The entropy of each row of weights in nats, (H, T)."""
    positive = weights_hts > 0
    logs = np.log(np.where(positive, weights_hts, 1.0))
    return -(weights_hts * logs).sum(-1, dtype=np.float64)


def _mean(values_ht: np.ndarray, rows_t: np.ndarray) -> np.ndarray:
    """The mean over chosen rows, (H,)."""
    if not rows_t.any():
        return np.full(len(values_ht), np.nan)
    return values_ht[:, rows_t].mean(-1, dtype=np.float64)


def _distances(offset_ts: np.ndarray, view: ModelView) -> np.ndarray:
    """How far each key is from each query; NaN where a token is not a patch of the image."""
    if view.patch_grid is None:
        return np.abs(offset_ts).astype(np.float32)
    rows, columns = view.patch_grid
    place = np.full((len(offset_ts), 2), np.nan, np.float32)
    patches = np.stack(np.divmod(view.cell_of_patch, columns), -1)
    place[view.leading_tokens : view.leading_tokens + rows * columns] = patches
    return np.linalg.norm(place[:, None] - place[None], axis=-1)


def _mean_distance(
    weights_hts: np.ndarray, distance_ts: np.ndarray | None, choice_t: np.ndarray
) -> np.ndarray:
    """The mean of a row's expected distance. Keys without a distance do not count."""
    if distance_ts is None:
        return np.full(len(weights_hts), np.nan)
    known_ts = ~np.isnan(distance_ts)
    total_ht = np.einsum("hts,ts->ht", weights_hts, known_ts.astype(np.float32))
    expected_ht = np.einsum("hts,ts->ht", weights_hts, np.nan_to_num(distance_ts))
    counted_ht = choice_t & (total_ht > 0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as it should be
        means_ht = expected_ht / np.where(counted_ht, total_ht, 1)
        return np.where(counted_ht, means_ht, 0).sum(-1) / counted_ht.sum(-1)


def _gradient_shares(attention: AttentionMap) -> np.ndarray | None:
    if attention.gradients_lhts is None:
        return None
    sizes_lh = np.abs(attention.weights_lhts * attention.gradients_lhts).sum((-2, -1), np.float64)
    return sizes_lh / max(sizes_lh.sum(), np.finfo(np.float64).tiny)
