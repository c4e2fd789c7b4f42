"""Quality of every attention kind with the same model, data, data order and steps.

    python benchmarks/attention_quality.py --task=pydoc --runs=runs/quality
    python benchmarks/attention_quality.py --task=listops --runs=runs/quality

Trains one model for each kind with train.py, one after another. Existing runs are reused. Then
measures the time of a few steps of each, on an otherwise idle machine, and the compiler's figure
for temporary memory. Prints a table in Markdown. --noscore skips training, --nocost the
measurements.
"""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
from absl import app, flags  # noqa: E402

from experiment import sections  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline import pipeline  # noqa: E402
from model.attention import KINDS  # noqa: E402
from training.mesh import make_mesh, put_batch  # noqa: E402
from training.model_for_task import make_model  # noqa: E402
from training.schedules import learning_rate  # noqa: E402
from training.step import make_train_step  # noqa: E402
from training.train_state import TrainSpec, abstract_state  # noqa: E402

TASK = flags.DEFINE_enum("task", "pydoc", ["pydoc", "listops"], "The task to train.")
RUNS = flags.DEFINE_string("runs", "runs/quality", "Directory of the runs.")
KIND = flags.DEFINE_list("kinds", list(KINDS), "Attention kinds.")
SCORE = flags.DEFINE_bool("score", True, "Whether to train.")
COST = flags.DEFINE_bool("cost", True, "Whether to measure time and memory.")
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps; the fastest counts.")

# Windows and chunks are short compared to the texts, so that limited context can hurt.
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
    print(f"| | {LABELS[TASK.value]} | time of a step | memory of a step |\n|---|---|---|---|")
    for kind in KIND.value:
        try:
            experiment = sections.from_mapping(config_of(kind))
        except ConfigError:
            print(f"| `{kind}` | refused | | |")
            continue
        score = f"{trained_score(kind):.3f}" if SCORE.value else ""
        time_and_memory = cost(experiment) if COST.value else ("", "")
        print(f"| `{kind}` | {score} | {' | '.join(time_and_memory)} |", flush=True)


def config_of(kind: str) -> dict:
    """The config of the task's run with this kind of attention."""
    config = importlib.import_module(f"configs.{TASK.value}").get_config()
    for section, keys in TASKS[TASK.value].items():
        config[section].update(keys)
    config.steps = RUN_STEPS[TASK.value]
    config.model.attention = kind
    return config.to_dict()


def trained_score(kind: str) -> float:
    """Returns the last score of the run; trains it with train.py if it has none."""
    workdir = Path(RUNS.value, f"{TASK.value}-{kind}-all").resolve()
    metrics = workdir / "metrics.jsonl"
    if not metrics.exists() or not _scores(metrics):
        options = [f"--config.{section}.{key}={value}" for section, keys in
                   TASKS[TASK.value].items() for key, value in keys.items()]  # fmt: skip
        options += [f"--config.model.attention={kind}", f"--config.steps={RUN_STEPS[TASK.value]}"]
        command = [sys.executable, "train.py", f"--config=configs/{TASK.value}.py", *options]
        subprocess.run(
            [*command, f"--workdir={workdir}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
    return _scores(metrics)[-1]


def _scores(metrics: Path) -> list[float]:
    lines = map(json.loads, metrics.read_text().splitlines())
    return [line[SCORES[TASK.value]] for line in lines if SCORES[TASK.value] in line]


def cost(experiment: sections.Experiment) -> tuple[str, str]:
    """Returns time and memory of one training step on the first batch."""
    data = pipeline.load(
        experiment.data, objective=experiment.task.objective, masking=experiment.masking, seed=0
    )
    sizes = dict(vocab_size=data.tokenizer.vocab_size, num_classes=len(data.labels))
    model_config = experiment.model.resolve(**sizes)
    model, mesh = make_model(model_config, experiment.task), make_mesh(experiment.mesh)
    schedule = learning_rate(experiment.optimizer, experiment.run.steps, model_config.width)
    batch = data.train_batch(0)
    with jax.set_mesh(mesh):
        spec = TrainSpec(model, experiment.task, experiment.optimizer, schedule)
        abstract, init = abstract_state(spec, batch, mesh)
        step = make_train_step(spec, abstract)
        on_device = put_batch(batch, mesh)
        state = init(jax.random.key(0))
        compiled = step.lower(state, on_device).compile()
        megabytes = compiled.memory_analysis().temp_size_in_bytes / 1e6
        best = float("inf")
        for _ in range(REPEATS.value + 1):  # the first one warms up
            begin = time.perf_counter()
            state, metrics = compiled(state, on_device)
            jax.block_until_ready(metrics)
            best = min(best, time.perf_counter() - begin)
    return f"{best * 1e3:,.0f} ms", f"{megabytes:,.0f} MB"


if __name__ == "__main__":
    app.run(main)
