"""What every kind of attention learns: the same model, data, order and steps, another kind.

    python benchmarks/attention_quality.py --task=pydoc --runs=runs/quality
    python benchmarks/attention_quality.py --task=listops --runs=runs/quality

Trains one model for each kind with train.py, one after another, and prints a table in Markdown.
A kind whose run is already there is not trained again. With --steps a few steps of each are run
instead, beside nothing else, to see what a step takes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import app, flags  # noqa: E402

from model.kinds import KINDS  # noqa: E402

TASK = flags.DEFINE_enum("task", "pydoc", ["pydoc", "listops"], "What is learned.")
RUNS = flags.DEFINE_string("runs", "runs/quality", "Directory of the runs.")
KIND = flags.DEFINE_list("kinds", list(KINDS), "Which kinds.")
STEPS = flags.DEFINE_integer("steps", 0, "Only so many steps of each, for their time and memory.")

# Stretches are short beside the texts, so that what a kind does not see could be missed.
TASKS = {
    "pydoc": {
        "model": dict(
            decoder_layers=3, width=128, heads=4, feed_forward=512, attention_window=64,
            attention_chunk=64, attention_overlap=16, attention_memory=64, attention_features=64,
        ),
        "data": dict(length=1024, batch_size=2),
        "eval": dict(every=0, batch_size=4, batches=24),
        "checkpoint": dict(every=0),
    },
    "listops": {
        "model": dict(
            attention_window=16, attention_chunk=16, attention_overlap=4, attention_memory=16,
            attention_features=64,
        ),
        "data": dict(batch_size=32),
        "eval": dict(every=0),
        "checkpoint": dict(every=0),
    },
}  # fmt: skip
RUN_STEPS = {"pydoc": 600, "listops": 300}
SCORES = {"pydoc": "eval/held_out/bits_per_byte", "listops": "eval/held_out/accuracy"}
LABELS = {"pydoc": "bits per byte", "listops": "accuracy"}


def main(_):
    lines = [f"| | {LABELS[TASK.value]} | tokens/s | memory of the process |", "|---|---|---|---|"]
    for kind in KIND.value:
        lines.append(f"| `{kind}` | {' | '.join(cells(kind))} |")
        print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))


def cells(kind: str) -> tuple[str, str, str]:
    """Score, speed and memory of one kind's run."""
    directory = Path(RUNS.value, f"{TASK.value}-{kind}-{STEPS.value or 'all'}")
    record = directory / "quality.json"
    if not record.exists():
        refusal = train(kind, directory, record)
        if refusal:
            return "refused", "", ""
    run = json.loads(record.read_text())
    score = "" if STEPS.value else f"{run['score']:.3f}"
    return score, f"{run['tokens_per_second']:,.0f}", f"{run['gigabytes']:.2f} GB"


def train(kind: str, directory: Path, record: Path) -> bool:
    """Runs train.py and writes down what came of it; True if it refused the config."""
    options = [f"--config.model.attention={kind}"]
    options += [f"--config.steps={STEPS.value or RUN_STEPS[TASK.value]}"]
    if STEPS.value:
        options += ["--config.log_every=5", "--config.optimizer.warmup_steps=1"]
    for section, keys in TASKS[TASK.value].items():
        options += [f"--config.{section}.{key}={value}" for key, value in keys.items()]
    command = [sys.executable, "train.py", f"--config=configs/{TASK.value}.py", *options]
    process = subprocess.Popen(
        [*command, f"--workdir={directory.resolve()}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 2:
        print(output.strip(), file=sys.stderr)
        return True
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{output}")
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    speeds = [m["perf/tokens_per_second"] for m in metrics if "perf/tokens_per_second" in m]
    scores = [m[SCORES[TASK.value]] for m in metrics if SCORES[TASK.value] in m]
    run = dict(
        score=scores[-1],
        tokens_per_second=max(speeds),
        gigabytes=used.ru_maxrss * 1024 / 1e9,
        command=command[1:],
    )
    record.write_text(json.dumps(run, indent=1))
    return False


if __name__ == "__main__":
    app.run(main)
