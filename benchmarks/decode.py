"""Compares our decoding with transformers' `generate` and CTranslate2, in one run.

    pip install -e '.[bench]' && python benchmarks/decode.py

GPT-2 small, SmolLM2-135M and the 2017 paper's base model (as Marian builds it), in float32 with the
same random weights in all libraries. Each gets 32 tokens and generates a fixed number of new ones.
Before timing, one pass of transformers' model without a cache checks the tokens: with greedy search
every token must have the largest logit; with beam search the sequences must be as likely as those
of transformers. Rounds alternate, so that load on the machine affects all libraries; the best round
of each counts. Times are of complete calls, including the prompt or source. CTranslate2 runs in its
own process, because it slowed down transformers in a process with torch.

SmolLM2 is decoded greedily. In place of CTranslate2 it is compared with llama.cpp, if --llama_bench
names its program llama-bench: PyPI has only the source of llama-cpp-python, so it is no dependency
here. llama-bench measures batch 1, and its tokens are its own.
"""

import importlib.metadata
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import torch
import transformers
from absl import app, flags

from benchmarks import decoders
from benchmarks.decoders import CORES, GIVEN, Shape

ROUNDS = flags.DEFINE_integer("rounds", 2, "Alternations; the best of each library counts.", 1)
ONLY = flags.DEFINE_enum("only", None, ["gpt2", "smollm2", "base"], "Only this model.")
NEW_TOKENS = flags.DEFINE_integer("new_tokens", 128, "New tokens per row.", 1, 1024 - GIVEN)
SKIP_CTRANSLATE2 = flags.DEFINE_bool("skip_ctranslate2", False, "Leave CTranslate2 out.")
LLAMA_BENCH = flags.DEFINE_string("llama_bench", "", "The program llama-bench, of llama.cpp.")

LIBRARIES = OURS, THEIRS, CT2 = "ours", "transformers", "CTranslate2"
BATCH = 16
METHODS = [("greedy", 1, 1), ("greedy", 1, BATCH), ("beam 4", 4, 1), ("beam 4", 4, BATCH)]
COPIED = 512 * 2**20  # bytes, far more than the CPU's caches
# How far the logit of a greedy choice may be below the largest; logits differ by tens.
GREEDY_TOLERANCE = 0.01
# Nats per token. Near ties of log-probabilities make searches differ.
BEAM_TOLERANCE = 0.05


def compare(shape: Shape, ctranslate2, machine: str) -> None:
    """Prints a line for every method; `ctranslate2` is its process, or None."""
    print(headings())
    for method, beams, rows in METHODS if shape.loader else METHODS[:2]:
        asked, how = shape.first(rows), dict(beams=beams, steps=NEW_TOKENS.value)
        ours = decoders.Ours(asked, **how)
        libraries = {OURS: ours, THEIRS: decoders.Transformers(asked, **how)}
        if ctranslate2 is not None:
            libraries[CT2] = decoders.CTranslate2(ctranslate2, asked, **how)
        measured, formula = ours.cache_bytes(), cache_formula(asked, beams)
        if measured != formula:
            sys.exit(
                f"{method}, batch {rows}: the cache has {measured} bytes, not {formula} as computed"
            )

        # The first call compiles and allocates.
        outputs = {name: decoder.tokens() for name, decoder in libraries.items()}
        check(asked, beams, outputs)
        rounds = [
            {name: seconds(decoder.tokens) for name, decoder in libraries.items()}
            for _ in range(ROUNDS.value)
        ]
        tokens = rows * NEW_TOKENS.value
        speeds = {name: tokens / min(times[name] for times in rounds) for name in libraries}
        ratios = {name: speeds[OURS] / speed for name, speed in speeds.items()}
        same = {name: (tokens_bt == outputs[THEIRS]).mean() for name, tokens_bt in outputs.items()}
        groups = (cells(speeds, LIBRARIES, ",.1f"), cells(ratios, (THEIRS, CT2), ".2f"),
                  cells(same, (OURS, CT2), ".1%"))  # fmt: skip
        cache = f"{measured / 1e6:>8.2f} {formula / 1e6:>8.2f}"
        print(f"{method:6} {rows:>5} {'  '.join(groups)}  {cache}", flush=True)
        if beams == rows == 1:
            read = bytes_for_a_token(shape.params)
            rates = [f"{name} {read * speed / 1e9:.1f}" for name, speed in speeds.items()]
            print(
                f"  weights of {read / 1e6:.1f} MB a token, in GB/s: {', '.join(rates)}; {machine}"
            )


def headings() -> str:
    """The two heading lines of the table."""
    groups = [
        ("tokens/s", LIBRARIES),
        ("ours : theirs", (THEIRS, CT2)),
        ("as transformers", (OURS, CT2)),
    ]
    above = "  ".join(f"{title:^{13 * len(libraries) - 1}}" for title, libraries in groups)
    below = "  ".join(" ".join(f"{name:>12}" for name in libraries) for _, libraries in groups)
    return f"{'':12} {above}  {'cache, MB':>17}\n{'method':6} batch {below}  {'arrays':>8} formula"


def cells(values: Mapping[str, float], libraries: Sequence[str], spec: str) -> str:
    """One cell for each library; a dash where it has no value."""
    return " ".join(f"{format(values[s], spec) if s in values else '-':>12}" for s in libraries)


def check(shape: Shape, beams: int, outputs: Mapping[str, np.ndarray]) -> None:
    """Exits unless the tokens of each library are those of the model."""
    wanted = shape.start_bt.shape[0], NEW_TOKENS.value
    for name, tokens_bt in outputs.items():
        if tokens_bt.shape != wanted:
            sys.exit(f"{name} returned tokens of shape {tokens_bt.shape} instead of {wanted}")
    reference = {name: reference_scores(shape, tokens_bt) for name, tokens_bt in outputs.items()}
    likelihood_b = reference[THEIRS][0].mean(1)
    for name, (log_probs_bt, gaps_bt) in reference.items():
        if beams == 1 and gaps_bt.max() > GREEDY_TOLERANCE:
            sys.exit(f"{name} chose a token whose logit is {gaps_bt.max():.3f} below the greatest")
        less = (likelihood_b - log_probs_bt.mean(1)).max()
        if beams > 1 and less > BEAM_TOLERANCE:
            sys.exit(f"{name} found a sequence {less:.3f} nats per token less likely than {THEIRS}")


@torch.inference_mode()
def reference_scores(shape: Shape, tokens_bt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens' log-probabilities and their logits' gaps to the largest, (B, T)."""
    log_probs, gaps = [], []
    # One row at a time, because logits are large.
    for row, tokens_t in enumerate(torch.from_numpy(tokens_bt.astype(np.int64))):
        start_t = torch.from_numpy(shape.start_bt[row].astype(np.int64))
        inputs_1t = torch.cat([start_t, tokens_t[:-1]])[None]
        if shape.source_bs is None:
            given = dict(input_ids=inputs_1t)
        else:
            source_1s = torch.from_numpy(shape.source_bs[row : row + 1].astype(np.int64))
            given = dict(input_ids=source_1s, decoder_input_ids=inputs_1t)
        logits_tv = shape.theirs(**given, use_cache=False).logits[0, len(start_t) - 1 :]
        chosen_t = logits_tv.gather(1, tokens_t[:, None])[:, 0]
        log_probs.append((chosen_t - logits_tv.logsumexp(1)).numpy())
        gaps.append((logits_tv.amax(1) - chosen_t).numpy())
    return np.stack(log_probs), np.stack(gaps)


def cache_formula(shape: Shape, beams: int) -> int:
    """Returns the bytes of keys and values: the prompt once, and the new tokens of each beam."""
    config = shape.config
    slots = shape.start_bt.shape[1] + beams * NEW_TOKENS.value
    if shape.source_bs is not None:
        slots += shape.source_bs.shape[1]
    rows = len(shape.start_bt)
    return 2 * config.decoder_layers * rows * config.kv_heads * config.head_size * slots * 4


def bytes_for_a_token(params: dict) -> int:
    """Returns the bytes of weights that every new token reads.

    The encoder and the key and value projections of the source run once per source. A token reads
    one row of the position table. The token table is also the output layer.
    """
    total = 0
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        modules = {entry.key for entry in path}
        of_source = "cross_attention" in modules and modules & {"key", "value"}
        if not (of_source or modules & {"encoder", "position_embedding"}):
            total += array.nbytes
    return total


def bandwidths() -> tuple[float, float]:
    """Returns bytes per second of a copy (reads and writes) and of a sum (reads)."""
    source = torch.ones(COPIED // 4)
    target = torch.zeros_like(source)
    copying = min(seconds(lambda: target.copy_(source)) for _ in range(8))
    reading = min(seconds(source.sum) for _ in range(8))
    return 2 * COPIED / copying, COPIED / reading


def seconds(call: Callable) -> float:
    """The seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ctranslate2_version() -> str | None:
    """Returns the installed version; None if skipped or not installed."""
    if SKIP_CTRANSLATE2.value:
        return None
    try:
        return importlib.metadata.version("ctranslate2")  # not imported: see start_ctranslate2
    except importlib.metadata.PackageNotFoundError:
        print("CTranslate2 is not installed; run: pip install -e '.[bench]'")
        return None


def main(_):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(CORES)
    ctranslate2 = ctranslate2_version()
    print(f"{CORES} cores; jax {jax.__version__}, torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}, ctranslate2 {ctranslate2 or '-'}")
    copying, reading = bandwidths()
    machine = f"this machine copies at {copying / 1e9:.1f}, reads at {reading / 1e9:.1f}"
    for make in (decoders.gpt2, decoders.smollm2, decoders.base):
        if ONLY.value not in (None, make.__name__):
            continue
        torch.manual_seed(0)
        shape = make(BATCH)
        count = sum(array.size for array in jax.tree.leaves(shape.params))
        print(f"\n{make.__name__}: {count:,} parameters, {GIVEN} tokens given, ", end="")
        print(f"{NEW_TOKENS.value} new ones")
        if LLAMA_BENCH.value and make is decoders.smollm2:
            speed = decoders.llama_bench_speed(shape, LLAMA_BENCH.value, NEW_TOKENS.value)
            print(f"llama-bench, batch 1: {speed:,.1f} tokens/s")
        if ctranslate2 is None or not shape.loader:
            compare(shape, None, machine)
        else:
            with decoders.start_ctranslate2(shape) as process:
                compare(shape, process, machine)


if __name__ == "__main__":
    app.run(main)
