"""The section of a report on what evaluate.py --details found, as HTML with all text escaped."""

import base64
import io
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from checkpointing.recorded_run import RunRecord
from visualization import eval_tables
from visualization.html_parts import dot, escaped, table

SHOWN_EXAMPLES = 20  # rows of a table of examples
SHOWN_CLASSES = 500  # rows of the table of classes
_ANSWER = ("source", "answer", "expected")


def details(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Classes, answers and losses by position, of runs that were evaluated with --details."""
    parts = [_positions(runs), _lengths(runs)]
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        valid = [each for each in run.details if eval_tables.is_valid(each)]
        for each in valid:
            title = (
                f"{dot(number)}{escaped(name)}: {escaped(each['eval_set'])}, step {each['step']}"
            )
            inside = _classes(each["classes"]) if "classes" in each else ""
            inside += _answers(each["answers"]) if "answers" in each else ""
            parts.append(f"<h3>{title}</h3>{inside}" if inside else "")
        if not valid:
            command = f"python evaluate.py --workdir={shlex.quote(str(run.workdir))} --details"
            parts.append(
                f'<p class="card note">{dot(number)}{escaped(name)} has no details yet. '
                f"This writes them: <code>{escaped(command)}</code></p>"
            )
    return "".join(parts)


def _classes(found: Mapping[str, Any]) -> str:
    matrix_plot = ""
    if len(found["labels"]) <= eval_tables.MOST_SHOWN_CLASSES:
        matrix = eval_tables.confusion_matrix(found)
        plot = json.dumps({"labels": found["labels"], "matrix": matrix.tolist()})
        matrix_plot = (
            '<div class="card plot"><h4>confusion matrix: predictions for each label</h4>'
            '<div class="canvas tall" data-kind="confusion" '
            f'data-plot="{escaped(plot)}"></div></div>'
        )
    rows = [
        [escaped(s.label), *(_share(v) for v in (s.precision, s.recall, s.f1)), f"{s.rows:,}"]
        for s in eval_tables.class_table(found)[:SHOWN_CLASSES]
    ]
    per_class = table(
        ("class", "precision", "recall", "F1", "examples"), rows, numbers=(1, 2, 3, 4)
    )
    pairs = [[escaped(a), escaped(b), f"{n:,}"] for a, b, n in eval_tables.confused_pairs(found)]
    confused = table(("label", "prediction", "examples"), pairs, numbers=(2,)) if pairs else ""
    worst = [
        [
            f'{_picture(row.get("image"))}<span class="text">{escaped(row["text"])}</span>',
            escaped(row["label"]),
            escaped(row["guess"]),
            _share(row["probability"]),
        ]
        for row in found["worst"][:SHOWN_EXAMPLES]
    ]
    scores = _folded("Precision, recall and F1 of each class, the worst first", per_class)
    examples = _folded(
        "The worst examples: the label's probability is the smallest",
        table(("input", "label", "prediction", "probability"), worst, numbers=(3,)),
    )
    pairs = _folded("The most frequent confusions", confused) if confused else ""
    return (
        f'<div class="split">{matrix_plot}{scores}</div><div class="split">{pairs}{examples}</div>'
    )


def _picture(image: Any) -> str:
    """The image of an example; "" if there is none, or its record is damaged."""
    try:
        pixels = np.frombuffer(base64.b64decode(image["data"], validate=True), np.uint8)
        pixels = pixels.reshape(image["shape"])
        if not pixels.size:
            return ""
        pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] != 3 else pixels
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
    except (LookupError, TypeError, ValueError):
        return ""
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img class="picture" alt="" src="data:image/png;base64,{data}">'


def _answers(found: Mapping[str, Any]) -> str:
    parts = ['<div class="split">']
    for part, title in (("worst", "The worst answers"), ("best", "The best answers")):
        rows = [
            [
                *(f'<span class="text">{escaped(r[k])}</span>' for k in _ANSWER),
                _share(r["chrf"], 1),
            ]
            for r in found[part][:SHOWN_EXAMPLES]
        ]
        body = table((*_ANSWER, "chrF"), rows, numbers=(3,))
        parts.append(_folded(f"{title}, by chrF of the sentence", body))
    return "".join(parts) + "</div>"


def _folded(title: str, body: str) -> str:
    return f"<details open><summary>{title}</summary>{body}</details>"


def _share(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _plot(title: str, kind: str, traces: list[dict[str, Any]]) -> str:
    return (
        f'<div class="card plot"><h4>{escaped(title)}</h4><div class="canvas" data-kind="{kind}" '
        f'data-plot="{escaped(json.dumps(traces))}"></div></div>'
    )


def _by_set(runs: Sequence[RunRecord], part: str) -> dict[str, list[tuple[int, Mapping]]]:
    sets: dict[str, list[tuple[int, Mapping]]] = {}
    for number, run in enumerate(runs):
        for each in run.details:
            if part in each and eval_tables.is_valid(each):
                sets.setdefault(each["eval_set"], []).append((number, each[part]))
    return sets


def _positions(runs: Sequence[RunRecord]) -> str:
    """Loss by position in the row, all runs in one plot for each eval set."""
    parts = []
    for eval_set, found in _by_set(runs, "positions").items():
        traces = []
        for number, positions in found:
            places, losses = eval_tables.loss_by_position(positions)
            weights = [positions["weight"][place] for place in places]
            x, y = eval_tables.binned(places, losses, weights)
            y = [float(f"{value:.6g}") if math.isfinite(value) else None for value in y]
            traces.append({"run": number, "x": x, "y": y})
        parts.append(_plot(f"loss by position in the row: {eval_set} (nats)", "positions", traces))
    return f'<div class="plots">{"".join(parts)}</div>' if parts else ""


def _lengths(runs: Sequence[RunRecord]) -> str:
    """Scores by the length of the source, all runs in one plot for each eval set and score."""
    parts = []
    for eval_set, found in _by_set(runs, "answers").items():
        for score, title in (("exact_match", "exact match"), ("chrf", "mean chrF of sentences")):
            traces = [
                {
                    "run": number,
                    "x": [(each["from"] + each["to"]) / 2 for each in answers["by_length"]],
                    "y": [each[score] for each in answers["by_length"]],
                    "text": [
                        f"{each['from']} to {each['to']} tokens, {each['rows']} rows"
                        for each in answers["by_length"]
                    ],
                }
                for number, answers in found
            ]
            parts.append(_plot(f"{title} by length of the source: {eval_set}", "lengths", traces))
    return f'<div class="plots">{"".join(parts)}</div>' if parts else ""
