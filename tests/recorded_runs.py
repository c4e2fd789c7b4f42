"""Run directories written by hand, as train.py and evaluate.py would; for tests of reports."""

import json
from pathlib import Path

CONFIG = {
    "steps": 40,
    "seed": 0,
    "model": {"family": "decoder", "width": 64, "heads": 4},
    "optimizer": {"learning_rate": 0.001},
    "checkpoint": {"best_metric": "", "best_mode": "max"},
}
METRICS = [
    {"step": 10, "train/loss": 4.0, "optim/learning_rate": 0.1},
    {"step": 20, "train/loss": 2.0, "optim/learning_rate": 0.1},
    {"step": 20, "eval/dates/loss": 3.0, "eval/dates/exact_match": 0.25},
    {"step": 30, "train/loss": "nan", "optim/learning_rate": 0.1},
    {"step": 40, "train/loss": 1.0, "optim/learning_rate": 0.1},
    {"step": 40, "eval/dates/loss": 3.5, "eval/dates/exact_match": 0.75},
]
# Killed after step 30, whose checkpoint was not saved; step 35 spikes; step 33 is skipped.
EVENTS = [
    {"event": "start", "step": 0, "time": 1e9, "parameters": {"trainable": 90, "total": 100}},
    {"event": "progress", "step": 10, "time": 1e9 + 8, "seconds": 8.0, "tokens": 1000},
    {"event": "progress", "step": 20, "time": 1e9 + 12, "seconds": 12.0, "tokens": 2000},
    {"event": "progress", "step": 30, "time": 1e9 + 16, "seconds": 16.0, "tokens": 2900},
    {"event": "start", "step": 20, "time": 1e9 + 90, "parameters": {"trainable": 90, "total": 100}},
    {"event": "progress", "step": 30, "time": 1e9 + 98, "seconds": 20.0, "tokens": 3000},
    {"event": "skipped", "step": 33, "time": 1e9 + 99, "loss": "nan"},
    {"event": "rollback", "step": 35, "time": 1e9 + 100, "to": 30},
    {"event": "progress", "step": 40, "time": 1e9 + 110, "seconds": 32.0, "tokens": 4000},
    {"event": "end", "step": 40, "time": 1e9 + 112, "seconds": 34.0},
]
ENVIRONMENT = {"python": "3.12.1", "packages": {"jax": "0.10.0"}, "devices": ["cpu"]}


def write_run(
    workdir: Path,
    *,
    config=CONFIG,
    metrics=METRICS,
    events=EVENTS,
    samples=(),
    details=(),
    model=None,
) -> Path:
    """Writes what is given; None leaves a file out."""
    workdir.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "environment.json": ENVIRONMENT,
        "model.json": {"model": {"input": "tokens"}, "labels": []} if model is None else model,
    }
    for name, content in files.items():
        if content is not None:
            (workdir / name).write_text(json.dumps(content))
    for name, lines in (("metrics.jsonl", metrics), ("events.jsonl", events)):
        if lines is not None:
            (workdir / name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    for name, text in dict(samples).items():
        (workdir / "samples").mkdir(exist_ok=True)
        (workdir / "samples" / name).write_text(text)
    for record in details:
        (workdir / "evaluations").mkdir(exist_ok=True)
        path = workdir / "evaluations" / f"{record['step']:08d}_{record['eval_set']}.json"
        path.write_text(json.dumps(record))
    return workdir


CLASSES = {
    "step": 40,
    "eval_set": "held_out",
    "objective": "classify_text",
    "classes": {
        "labels": ["cat", "dog", "cow"],
        "confusion": [[0, 0, 3], [0, 1, 1], [1, 1, 2], [2, 1, 2]],
        "worst": [
            {"row": 4, "text": "moo", "label": "cow", "guess": "dog", "probability": 0.01},
            {"row": 1, "text": "meow", "label": "cat", "guess": "dog", "probability": 0.2},
        ],
    },
}
ANSWERS = {
    "step": 40,
    "eval_set": "dates",
    "objective": "seq2seq",
    "answers": {
        "worst": [
            {"row": 0, "source": "1 May", "answer": "x", "expected": "05-01", "chrf": 0.0,
             "exact": False},
        ],
        "best": [
            {"row": 1, "source": "2 May", "answer": "05-02", "expected": "05-02", "chrf": 100.0,
             "exact": True},
        ],
        "by_length": [
            {"from": 4, "to": 6, "rows": 2, "exact_match": 0.5, "chrf": 50.0},
            {"from": 7, "to": 9, "rows": 1, "exact_match": 0.0, "chrf": 10.0},
        ],
    },
}  # fmt: skip
POSITIONS = {
    "step": 40,
    "eval_set": "held_out",
    "objective": "causal_lm",
    "positions": {"nll": [8.0, 6.0, 0.0, 1.0], "weight": [2.0, 2.0, 0.0, 1.0]},
}
