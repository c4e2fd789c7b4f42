"""The numbers of a `ModelView` as JSON, with the summaries of heads."""

import base64
import json
from typing import Any

import numpy as np

from visualization.head_summaries import summarize
from visualization.model_view import AttentionMap, Candidates, ModelView

DIGITS = 7  # float32 has no more


def as_json(view: ModelView) -> str:
    """One JSON object. Numbers have 7 significant digits; what is not there is null."""
    content = {
        "title": view.title,
        "facts": dict(view.facts),
        "prediction": view.prediction,
        "special_tokens": sorted(view.special_tokens),
        "maps": [_map(each, view) for each in view.maps],
        "norms": {stack: _numbers(norms_lt) for stack, norms_lt in view.norms},
        "lens": view.lens
        and {
            "positions": view.lens.positions,
            "layers": [_candidates(each) for each in view.lens.layers],
        },
        "scores": view.scores
        and {
            "tokens": view.scores.tokens,
            "log_probabilities": _numbers(view.scores.log_probabilities),
            "ranks": view.scores.ranks.tolist(),
            "candidates": _candidates(view.scores.candidates),
        },
        "image_png": view.image_png and base64.b64encode(view.image_png).decode(),
        "image_name": view.image_png and view.image_name,
        "patch_grid": view.patch_grid,
        "patch_cells": view.patch_grid and view.cell_of_patch.tolist(),
        "leading_tokens": view.leading_tokens,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def _map(attention: AttentionMap, view: ModelView) -> dict[str, Any]:
    return {
        "name": attention.name,
        "layers": attention.layers,
        "kinds": attention.kinds,
        "queries": attention.queries,
        "keys": attention.keys,
        "weights": _numbers(attention.weights_lhts),
        "visible": attention.visible_lts.astype(int).tolist(),
        "gradients": _numbers(attention.gradients_lhts),
        "rollout": _numbers(attention.rollout_ts),
        "summaries": summarize(attention, view).rows(attention.layers),
    }


def _candidates(candidates: Candidates) -> dict[str, Any]:
    return {
        "tokens": candidates.tokens,
        "probabilities": _numbers(candidates.probabilities),
    }


def _numbers(array: np.ndarray | None) -> Any:
    """Nested lists of numbers with 7 significant digits."""
    if array is None:
        return None
    if array.ndim:
        return [_numbers(each) for each in array]
    return float(f"{array:.{DIGITS}g}")
