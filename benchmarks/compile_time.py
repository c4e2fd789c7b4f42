"""Compile time of the training step with few and with many scanned layers.

    python benchmarks/compile_time.py

The scan over layers is one loop (model.unroll=1), so the compiler sees one block whatever the
depth. Rounds alternate, so that load on the machine affects both depths; the fastest of each
counts. Times are CPU seconds, which other processes affect less than wall-clock time.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from absl import app, flags

from configs import architectures, default
from experiment import sections
from training.compilation import keep_programs
from training.mesh import make_mesh
from training.model_for_task import make_model
from training.schedules import learning_rate
from training.step import make_train_step
from training.train_state import NO_FROZEN_INPUTS, TrainSpec, abstract_state

ROUNDS = flags.DEFINE_integer("rounds", 3, "Alternations; the fastest of each depth counts.")
DEPTHS = (6, 48)
BATCH, LENGTH = 8, 256


def seconds_to_compile(layers: int) -> tuple[float, float]:
    """Returns the times of tracing and lowering, and of compiling, a decoder like GPT-2."""
    jax.clear_caches()
    config = default.get_config()
    config.model.update(architectures.gpt2())
    config.model.update(dict(vocab_size=8192, decoder_layers=layers, unroll=1))
    config.data.update(dict(batch_size=BATCH, length=LENGTH))
    config.task.objective = "causal_lm"
    experiment = sections.from_mapping(config.to_dict())
    model_config = experiment.model.resolve()
    model = make_model(model_config, experiment.task)
    schedule = learning_rate(experiment.optimizer, 1000, model_config.width)
    mesh = make_mesh(experiment.mesh)
    tokens = np.zeros((BATCH, LENGTH), np.int32)
    batch = {"inputs": tokens, "targets": tokens, "weights": tokens.astype(np.float32)}
    with jax.set_mesh(mesh):
        begin = time.process_time()
        spec = TrainSpec(model, experiment.task, experiment.optimizer, schedule)
        abstract, _ = abstract_state(spec, batch, mesh)
        step = make_train_step(spec, abstract)
        lowered = step.lower(abstract, batch, NO_FROZEN_INPUTS)
        between = time.process_time()
        lowered.compile()
    return between - begin, time.process_time() - between


def main(_) -> None:
    keep_programs("off")
    jax.config.update("jax_enable_compilation_cache", False)
    found = {layers: [] for layers in DEPTHS}
    seconds_to_compile(DEPTHS[0])  # warm-up
    for _ in range(ROUNDS.value):
        for layers in DEPTHS:
            found[layers].append(seconds_to_compile(layers))
    print("layers  tracing  compiling    sum   CPU seconds")
    best = {layers: min(times, key=sum) for layers, times in found.items()}
    for layers, (tracing, compiling) in best.items():
        print(f"{layers:6d} {tracing:8.2f} {compiling:10.2f} {tracing + compiling:6.2f}")
    few, many = (sum(best[layers]) for layers in DEPTHS)
    print(f"{DEPTHS[1]} layers take {many / few:.2f} times as long as {DEPTHS[0]}")


if __name__ == "__main__":
    app.run(main)
