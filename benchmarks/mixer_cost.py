"""Compares the training step of our recurrent layers with that of torch's, in one run.

    pip install -e '.[bench]' && python benchmarks/mixer_cost.py

A step is the forward and backward pass of one causal layer in float32, with the gradients of all
parameters and of the input. Both have the same numbers of parameters, except that torch has a
second bias. Rounds alternate, so that load on the machine affects both; the best round of each
counts. A ratio above 1 means that ours is faster.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from absl import app, flags
from jax import Array

from configs import default
from experiment import schema
from model.config import TransformerConfig
from model.layers import Dense
from model.mixers import MIXERS
from model.mixers.mixer import MixerInputs
from training.compilation import compiler_options

ROUNDS = flags.DEFINE_integer("rounds", 7, "Alternations; the best of each library counts.")
STEPS = flags.DEFINE_integer("steps", 5, "Training steps in a round.")
CELLS = flags.DEFINE_list("cells", ["lstm", "gru", "rnn"], "Which layers.")
SIZES = flags.DEFINE_list(
    "sizes", ["64x64x128", "16x256x384", "32x128x512"], "Batch, length and width of each size."
)
THREADS = flags.DEFINE_integer("threads", 0, "torch threads; 0: torch's default.")

THEIRS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
Step = Callable[[], None]  # runs one training step and waits for it


class RecurrentLayer(nn.Module):
    """A mixer without the layer after it, which torch does not have."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_btd: Array) -> Array:
        mixer, batch = MIXERS[self.config.mixer], len(x_btd)
        layers = {
            name: Dense(
                self.config, (layer.columns,), ("width", "mixed"), bias=layer.bias, name=name
            )
            for name, layer in mixer.layers(self.config, causal=True).items()
            if name != "out"
        }
        segments_bt = jnp.ones(x_btd.shape[:2], jnp.int32)
        inputs = MixerInputs(self.config, layers, x_btd, segments_bt)
        return mixer.mix(inputs, mixer.init_state(self.config, 0, batch))[0]


def our_step(cell: str, x_btd: np.ndarray, weights_btd: np.ndarray) -> tuple[Step, int]:
    """Returns our step and the number of parameters."""
    keys = default.get_config().model.to_dict()
    config, problems = schema.build(TransformerConfig, keys, "model")
    assert not problems, problems
    config = dataclasses.replace(config, mixer=cell, width=x_btd.shape[2]).resolve()
    layer = RecurrentLayer(config)
    x, weights = jnp.asarray(x_btd), jnp.asarray(weights_btd)
    params = nn.unbox(layer.init(jax.random.key(0), x))

    def loss(params, x):
        return (layer.apply(params, x) * weights).sum()

    gradient = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1)), compiler_options=compiler_options()
    )
    return lambda: jax.block_until_ready(gradient(params, x)), sum(
        leaf.size for leaf in jax.tree.leaves(params)
    )


def their_step(cell: str, x_btd: np.ndarray, weights_btd: np.ndarray) -> tuple[Step, int]:
    """Returns torch's step and the number of parameters."""
    layer = THEIRS[cell](x_btd.shape[2], x_btd.shape[2], batch_first=True)
    x, weights = torch.from_numpy(x_btd).requires_grad_(), torch.from_numpy(weights_btd)

    def step():
        layer.zero_grad(set_to_none=True)
        x.grad = None
        (layer(x)[0] * weights).sum().backward()

    return step, sum(parameter.numel() for parameter in layer.parameters())


def seconds(step: Step, count: int) -> float:
    """The mean seconds of a step over `count` steps."""
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begin) / count


def main(_):
    if THREADS.value:
        torch.set_num_threads(THREADS.value)
    print(f"jax {jax.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'layer':6} {'BxTxD':>12} {'parameters':>19} {'ours':>14} {'torch':>14} {'ratio':>6}")
    for cell in CELLS.value:
        for size in SIZES.value:
            shape = tuple(map(int, size.split("x")))
            rng = np.random.default_rng(0)
            arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]
            (ours, our_count), (theirs, their_count) = (
                our_step(cell, *arrays),
                their_step(cell, *arrays),
            )
            ours(), theirs()  # compile, allocate
            rounds = [(seconds(ours, STEPS.value), seconds(theirs, STEPS.value))
                      for _ in range(ROUNDS.value)]  # fmt: skip
            best = [min(times) for times in zip(*rounds, strict=True)]
            speeds = [f"{shape[0] * shape[1] / t:>8,.0f} tok/s" for t in best]
            counts = f"{our_count:,} / {their_count:,}"
            ratio = best[1] / best[0]
            print(f"{cell:6} {size:>12} {counts:>19} {speeds[0]} {speeds[1]} {ratio:>6.2f}")


if __name__ == "__main__":
    app.run(main)
