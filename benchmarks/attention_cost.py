"""Time and memory of every attention kind as the length grows, forward and backward.

    pip install -e '.[plots]' && python benchmarks/attention_cost.py

One row of causal self-attention, 8 heads of 64 in float32, from queries, keys and values to their
gradients. Memory is the compiler's figure for temporary buffers, without inputs and outputs. Time
is the best of a few runs. The exponent is the slope of the last doublings in a log-log plot: with
1, twice the length costs twice as much. Writes docs/attention_cost.png and .svg, and prints a table
in Markdown.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from configs import default
from experiment import schema
from model.attention import KINDS
from model.attention.dot_attention import QKV
from model.attention.interface import AttentionContext, AttentionInputs
from model.config import TransformerConfig
from model.masks import MaskSpec, SequenceInfo
from training.compilation import compiler_options

KIND = flags.DEFINE_list("kinds", list(KINDS), "Attention kinds.")
LONGEST = flags.DEFINE_integer("longest", 32_768, "The longest row; lengths double from 512.")
MEMORY = flags.DEFINE_float("memory", 8.0, "Programs that need more GB are compiled but not run.")
SECONDS = flags.DEFINE_float("seconds", 4.0, "Seconds of repeated runs; at least two runs.")
PICTURE = flags.DEFINE_string("picture", "docs/attention_cost", "Path of the plot, no suffix.")

HEADS, HEAD_SIZE = 8, 64
SETTINGS = dict(
    family="decoder", position="none", heads=HEADS, head_size=HEAD_SIZE, attention_window=256,
    attention_chunk=256, attention_overlap=64, attention_memory=256, attention_features=256,
)  # fmt: skip
DOUBLINGS = 4  # for the exponents; at short lengths fixed costs hide the growth


class PassCost(NamedTuple):
    """Memory and time of one pass."""

    gigabytes: float
    seconds: float | None  # None: not run


def main(_):
    lengths = [512]
    while lengths[-1] < LONGEST.value:
        lengths.append(2 * lengths[-1])
    costs: dict[str, dict[int, PassCost]] = {}
    for kind in KIND.value:
        costs[kind] = {}
        for length in lengths:
            costs[kind][length] = cost = measure(kind, length)
            shown = "not run" if cost.seconds is None else f"{cost.seconds * 1e3:10,.1f} ms"
            print(f"{kind:14} {length:6} {cost.gigabytes * 1e3:10,.1f} MB {shown}", flush=True)
    print()
    print(table(costs, lengths))
    draw(costs)


def measure(kind: str, length: int) -> PassCost:
    """Returns memory and time of one forward and backward pass."""
    values = {**default.get_config().model.to_dict(), **SETTINGS, "attention": kind}
    config, problems = schema.build(TransformerConfig, values, "model")
    if problems:
        raise schema.ConfigError(problems)
    rng = np.random.default_rng(0)
    shape = (1, length, HEADS, HEAD_SIZE)
    qkv = QKV(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)))
    positions_bt = jnp.arange(length)[None]
    info = SequenceInfo(positions_bt, jnp.ones_like(positions_bt))
    if KINDS[kind].uses_global_tokens:
        info = SequenceInfo(positions_bt, jnp.ones_like(positions_bt), global_bt=positions_bt == 0)
    mask_spec = MaskSpec(info, info, causal=True)
    shared = KINDS[kind].shared(config, lambda: None)
    vector_hk = jnp.asarray(rng.normal(size=shape[2:]), jnp.float32)  # kinds without one ignore it

    def loss(qkv: QKV, mask_spec: MaskSpec):
        inputs = AttentionInputs(
            config,
            qkv,
            AttentionContext(mask_spec),
            KINDS[kind].mask_spec(config, mask_spec),
            scale=HEAD_SIZE**-0.5,
            shared=shared,
            score_vector_hk=vector_hk,
            # Kinds with extra projections get the same queries, keys and values.
            project=lambda *_, **__: qkv,
        )
        return jnp.square(KINDS[kind].attend(inputs)).sum()

    step = jax.jit(jax.grad(loss), compiler_options=compiler_options())
    compiled = step.lower(qkv, mask_spec).compile()
    gigabytes = compiled.memory_analysis().temp_size_in_bytes / 1e9
    if gigabytes > MEMORY.value:
        return PassCost(gigabytes, None)
    best, begin, runs = np.inf, time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - begin < SECONDS.value:
        start = time.perf_counter()
        jax.block_until_ready(compiled(qkv, mask_spec))
        best, runs = min(best, time.perf_counter() - start), runs + 1
    return PassCost(gigabytes, best)


def exponent(points: dict[int, float]) -> float:
    """Returns the slope over the last doublings in a log-log plot."""
    lengths = sorted(points)[-DOUBLINGS - 1 :]
    return float(np.polyfit(np.log(lengths), np.log([points[n] for n in lengths]), 1)[0])


def table(costs: dict[str, dict[int, PassCost]], lengths: list[int]) -> str:
    """Returns a table in Markdown, with a line for each kind."""
    lines = [
        "| | " + " | ".join(f"{n:,}" for n in lengths) + " | time exponent | memory exponent |",
        "|---" * (len(lengths) + 3) + "|",
    ]
    for kind, of_lengths in costs.items():
        cells = []
        for cost in of_lengths.values():
            took = "not run" if cost.seconds is None else f"{cost.seconds * 1e3:,.0f} ms"
            cells.append(f"{took}, {cost.gigabytes * 1e3:,.0f} MB")
        times = {n: cost.seconds for n, cost in of_lengths.items() if cost.seconds is not None}
        memory = {n: cost.gigabytes for n, cost in of_lengths.items()}
        exponents = f"{exponent(times):.2f} | {exponent(memory):.2f}"
        lines.append(f"| `{kind}` | " + " | ".join(cells) + f" | {exponents} |")
    return "\n".join(lines)


def draw(costs: dict[str, dict[int, PassCost]]) -> None:
    """Plots time and memory against the length."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for kind, of_lengths in costs.items():
        run = {n: cost.seconds for n, cost in of_lengths.items() if cost.seconds is not None}
        left.plot(run.keys(), run.values(), marker="o", markersize=4, label=kind)
        memory = [1e3 * cost.gigabytes for cost in of_lengths.values()]
        right.plot(of_lengths.keys(), memory, marker="o", markersize=4, label=kind)
    for axes, what in ((left, "seconds"), (right, "megabytes of temporary memory")):
        axes.set(xscale="log", yscale="log", xlabel="length", ylabel=what)
        axes.set_xticks(lengths := list(next(iter(costs.values()))), [f"{n:,}" for n in lengths])
        axes.grid(alpha=0.3)
    right.legend()
    for ending in ("png", "svg"):
        figure.savefig(f"{PICTURE.value}.{ending}", dpi=150)


if __name__ == "__main__":
    app.run(main)
