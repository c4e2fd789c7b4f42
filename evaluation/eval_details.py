"""The results of an evaluation row by row, as a report shows them.

A file holds counts over all scored rows, and a few rows as text: the worst, and for answers also
the best. So its size is bounded by the number of classes and the length of rows, not by the data.
Axes: B rows, C classes, T positions.
"""

import base64
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sacrebleu.metrics import CHRF

from training.config import TaskConfig
from training.model_for_task import forward

DIRECTORY = "evaluations"
WORST, BEST = 50, 20  # rows that are kept as text
MOST_CHARACTERS = 2_000  # of a text
MOST_PIXELS = 32  # of a side of an image
MOST_BINS = 8  # of source lengths


def make_position_step(model: nn.Module, task: TaskConfig) -> Callable:
    """The jitted (params, batch) -> (negative log-likelihoods, weights), summed over rows: (T,)."""

    def step(params, batch) -> tuple[Array, Array]:
        logits_btv = forward(model, task, params, batch)["logits"].astype(jnp.float32)
        log_z_bt = jax.nn.logsumexp(logits_btv, axis=-1)
        target_bt = jnp.take_along_axis(logits_btv, batch["targets"][..., None], axis=-1)[..., 0]
        weights_bt = batch["weights"].astype(jnp.float32)
        return ((log_z_bt - target_bt) * weights_bt).sum(axis=0), weights_bt.sum(axis=0)

    return jax.jit(step)


class Answer(NamedTuple):
    """The answer of a model to one source."""

    text: str
    expected: str  # as the row has it: possibly truncated
    length: int  # of the source, in tokens
    is_exact: bool


@dataclasses.dataclass
class EvalDetails:
    """Collects the outputs of one eval set, batch by batch, in the order of `examples`."""

    objective: str
    labels: Sequence[str]
    examples: Sequence[Mapping[str, Any]]  # of the set, as text

    def __post_init__(self):
        self._classes: list[tuple[np.ndarray, np.ndarray]] = []
        self._answers: list[str] = []
        self._prompts: list[str] = []
        self._expected: list[str] = []
        self._lengths: list[int] = []
        self._exact: list[bool] = []
        self._nll_t = self._weights_t = np.zeros(0)

    def add_classes(self, labels_b, probabilities_bc, weights_b) -> None:
        real_b = np.asarray(weights_b) > 0
        self._classes.append((np.asarray(labels_b)[real_b], np.asarray(probabilities_bc)[real_b]))

    def add_answers(
        self,
        answers: Sequence[str],
        prompts: Sequence[str],
        expected: Sequence[str],
        lengths: Sequence[int],
        exact: Sequence[bool],
    ) -> None:
        """Adds rows without those that only pad a batch. `lengths` are tokens of the source."""
        self._answers += answers
        self._prompts += prompts
        self._expected += expected
        self._lengths += [int(length) for length in lengths]
        self._exact += [bool(each) for each in exact]

    def add_positions(self, nll_t, weights_t) -> None:
        """Adds sums over the rows of a batch. Batches may differ in length."""
        self._nll_t = _sum_of_lengths(self._nll_t, np.asarray(nll_t, float))
        self._weights_t = _sum_of_lengths(self._weights_t, np.asarray(weights_t, float))

    @property
    def answers(self) -> list[Answer]:
        """The answers so far, without rows that only pad a batch."""
        columns = self._answers, self._expected, self._lengths, self._exact
        return [Answer(*row) for row in zip(*columns, strict=True)]

    def record(self) -> dict[str, Any]:
        """What was collected, as plain data."""
        found: dict[str, Any] = {"objective": self.objective}
        if self._classes:
            labels_b, probabilities_bc = map(np.concatenate, zip(*self._classes, strict=True))
            found["classes"] = self._of_classes(labels_b, probabilities_bc)
        if self._answers:
            found["answers"] = self._of_answers()
        if len(self._nll_t):
            found["positions"] = {
                "nll": [_rounded(value) for value in self._nll_t.tolist()],
                "weight": self._weights_t.tolist(),
            }
        return found

    def _of_classes(self, labels_b: np.ndarray, probabilities_bc: np.ndarray) -> dict[str, Any]:
        guesses_b = probabilities_bc.argmax(axis=1)
        given_b = probabilities_bc[np.arange(len(labels_b)), labels_b]
        pairs = Counter(zip(labels_b.tolist(), guesses_b.tolist(), strict=True))
        worst = np.argsort(given_b, kind="stable")[:WORST]
        return {
            "labels": list(self.labels),
            # (label, guess, rows), without pairs that do not occur
            "confusion": [[*pair, count] for pair, count in sorted(pairs.items())],
            "worst": [
                {
                    "row": row,
                    "text": _cut(_text_of(self.examples, row)),
                    **_image_of(self.examples, row),
                    "label": self.labels[labels_b[row]],
                    "guess": self.labels[guesses_b[row]],
                    "probability": _rounded(given_b[row]),
                }
                for row in worst.tolist()
            ],
        }

    def _of_answers(self) -> dict[str, Any]:
        metric = CHRF()
        scores = np.array(
            [
                metric.sentence_score(answer, [expected]).score
                for answer, expected in zip(self._answers, self._expected, strict=True)
            ]
        )
        exact, lengths = np.array(self._exact), np.array(self._lengths)
        # Among equal scores, exact matches are better, and earlier rows come first.
        order = np.lexsort((np.arange(len(scores)), exact, scores)).tolist()
        best = np.lexsort((np.arange(len(scores)), ~exact, -scores)).tolist()

        def shown(row: int) -> dict[str, Any]:
            return {
                "row": row,
                "source": _cut(self._prompts[row]),
                "answer": _cut(self._answers[row]),
                "expected": _cut(self._expected[row]),
                "chrf": round(float(scores[row]), 2),
                "exact": bool(exact[row]),
            }

        return {
            "worst": [shown(row) for row in order[:WORST]],
            "best": [shown(row) for row in best[:BEST]],
            "by_length": [
                {
                    "from": int(lengths[rows].min()),
                    "to": int(lengths[rows].max()),
                    "rows": len(rows),
                    "exact_match": round(float(exact[rows].mean()), 6),
                    "chrf": round(float(scores[rows].mean()), 4),
                }
                for rows in length_bins(lengths)
            ],
        }


def length_bins(lengths: np.ndarray, most: int = MOST_BINS) -> list[np.ndarray]:
    """Row numbers in bins of about equal size, by length. Rows of one length share a bin."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, most + 1)[1:-1], method="lower"))
    bins = np.searchsorted(edges, lengths, side="left")
    return [np.flatnonzero(bins == each) for each in np.unique(bins)]


def write_details(workdir: Path, step: int, eval_set: str, details: Mapping[str, Any]) -> Path:
    """Writes <workdir>/evaluations/<step>_<set>.json atomically; returns its path."""
    directory = workdir / DIRECTORY
    directory.mkdir(exist_ok=True)
    path = directory / f"{step:08d}_{eval_set.replace('/', '_')}.json"
    temporary = path.with_suffix(".json.new")
    record = {"step": step, "eval_set": eval_set, **details}
    temporary.write_text(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    temporary.replace(path)
    return path


def _sum_of_lengths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of two arrays, the shorter one filled up with zeros."""
    total = np.zeros(max(len(a), len(b)))
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def _rounded(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return round(float(value), 6) if math.isfinite(value) else None


def example_text(example: Mapping[str, Any], unnamed: str = "image") -> str:
    """An example as one text: its texts, else its name, else `unnamed`."""
    texts = [example[key] for key in ("text", "text_pair") if isinstance(example.get(key), str)]
    return " | ".join(texts) or str(example.get("name", unnamed))


def _text_of(examples: Sequence[Mapping[str, Any]], row: int) -> str:
    return example_text(examples[row] if row < len(examples) else {}, f"image {row}")


def _image_of(examples: Sequence[Mapping[str, Any]], row: int) -> dict[str, Any]:
    """A small image of uint8, as its shape and its bytes in base64; {} for texts."""
    image = examples[row].get("image") if row < len(examples) else None
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3):
        return {}
    every = -(-max(image.shape[:2]) // MOST_PIXELS)
    image = image[::every, ::every]
    if image.dtype != np.uint8:  # any scale: only the contrast within the image is shown
        image = np.nan_to_num(image.astype(np.float32))
        low, high = image.min(), image.max()
        image = ((image - low) / max(high - low, 1e-9) * 255).astype(np.uint8)
    data = base64.b64encode(np.ascontiguousarray(image).tobytes()).decode()
    return {"image": {"shape": list(image.shape), "data": data}}


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
