"""A ModelView as JSON for the page, and as text that is safe inside a <script> element."""

import base64
import json

import numpy as np

from visualization import colour_ramps, head_summaries, packed_arrays
from visualization.gradient_relevance import gradient_relevance
from visualization.model_view import AttentionMap, Candidates, ModelView

# Weights get 16 bits as long as the page stays below 2 MB, which is 12 layers x 12 heads x 64
# tokens at worst; 8 bits otherwise.
BUDGET = 1_800_000
# Any of these could end the element or the string that holds them.
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page_data(view: ModelView) -> dict:
    """Everything that the page shows, ready for JSON. Weights have 16 bits if that fits."""
    bits = weight_bits(view)
    weight_count = sum(attention.weights_lhts.size for attention in view.maps)
    image = view.image_png and base64.b64encode(view.image_png).decode("ascii")
    return {
        "title": view.title,
        "facts": [list(fact) for fact in view.facts],
        "prediction": view.prediction,
        "precision": {
            "bits": bits,
            "largestError": float(packed_arrays.error_bound(np.ones(()), bits)),
            "weights": weight_count,
        },
        "ramps": {name: colour_ramps.hexadecimal(name) for name in colour_ramps.POINTS},
        "thresholds": {"share": head_summaries.SHARE, "even": head_summaries.EVEN},
        "maps": [_map(attention, view, bits) for attention in view.maps],
        "norms": [{"name": name, "values": _rounded(norms)} for name, norms in view.norms],
        "lens": view.lens
        and {
            "positions": list(view.lens.positions),
            "layers": [_candidates(layer) for layer in view.lens.layers],
        },
        "scores": view.scores
        and {
            "tokens": list(view.scores.tokens),
            "logProbabilities": _rounded(view.scores.log_probabilities),
            "ranks": [int(rank) for rank in view.scores.ranks],
            "candidates": _candidates(view.scores.candidates),
        },
        "image": image
        and view.patch_grid
        and {
            "png": image,
            "name": view.image_name,
            "grid": list(view.patch_grid),
            "cells": view.cell_of_patch.tolist(),
            "leading": view.leading_tokens,
        },
    }


def weight_bits(view: ModelView) -> int:
    """16 if all weights fit into the budget with 16 bits, otherwise 8."""
    arrays = [a.weights_lhts for a in view.maps]
    # Masks and repeated codes compress well, but hardly to a quarter: do not try for long.
    if sum(array.size for array in arrays) * 2 * 4 / 3 > 4 * BUDGET:
        return 8
    extra = sum(a.gradients_lhts.size for a in view.maps if a.gradients_lhts is not None) * 4 / 3
    packed = [part for array in arrays for part in packed_arrays.pack(array, 16)["parts"]]
    return 16 if sum(map(len, packed)) + extra <= BUDGET else 8


def as_script_text(data: dict) -> str:
    """JSON in ASCII without any character that could end the script element around it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(ESCAPES)


def _map(attention: AttentionMap, view: ModelView, bits: int) -> dict:
    weights = attention.weights_lhts
    gradients = attention.gradients_lhts
    rollout = attention.rollout_ts
    relevance = gradient_relevance(attention)
    return {
        "name": attention.name,
        "layers": [int(layer) for layer in attention.layers],
        "kinds": list(attention.kinds),
        "heads": int(weights.shape[1]),
        "queries": list(attention.queries),
        "keys": list(attention.keys),
        "weights": packed_arrays.pack(weights, bits),
        "visible": packed_arrays.pack_bits(attention.visible_lts),
        "sums": packed_arrays.pack_sums(weights.sum(-1, dtype=np.float64)),
        # Small against the weights, and never needed to many digits.
        "products": None
        if gradients is None
        else packed_arrays.pack(weights * gradients, 8, signed=True),
        "rollout": None if rollout is None else packed_arrays.pack(rollout[None], 16),
        "relevance": None
        if relevance is None
        else packed_arrays.pack(relevance[None], 16, signed=True),
        "summaries": [
            {k: _digits(v) if isinstance(v, float) else v for k, v in row.items()}
            for row in head_summaries.summarize(attention, view).rows(attention.layers)
        ],
    }


def _candidates(candidates: Candidates) -> dict:
    return {
        "tokens": [list(tokens) for tokens in candidates.tokens],
        "probabilities": _rounded(candidates.probabilities),
    }


def _rounded(values: np.ndarray) -> list:
    """Nested lists of numbers with six digits; None for NaN and infinities."""
    if np.ndim(values) > 1:
        return [_rounded(row) for row in values]
    return [_digits(float(value)) for value in values]


def _digits(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
