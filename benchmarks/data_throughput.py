"""Speed of the input pipeline on one core, and the share of time that training waits for it.

    python benchmarks/data_throughput.py

The text is Python's documentation and library, written to files; the translation pairs are dates.
Batches come from a warm cache and are built in this process, without prefetching. The wait share is
that of a small GPT trained by train.py, which prefetches.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import app, flags

from configs import default
from input_pipeline import pipeline
from input_pipeline.config import DataConfig
from input_pipeline.objectives.objective import Masking
from input_pipeline.preparation import PreparationJob, prepare
from input_pipeline.sources.embedded import dates, pydoc
from input_pipeline.sources.registry import components
from input_pipeline.token_cache import TokenCache
from input_pipeline.token_table import FeatureSpec
from training.throughput import amount_in

ROUNDS = flags.DEFINE_integer("rounds", 5, "Repetitions of each measurement.")
BATCHES = flags.DEFINE_integer("batches", 30, "Batches in a round.")
STEPS = flags.DEFINE_integer("steps", 40, "Training steps for the wait share; 0: skip it.")

ROOT = Path(__file__).resolve().parents[1]
WAIT = "perf/data_wait_fraction"
LENGTH, BATCH = 512, 32
PAIRS = 50_000
MASKING = Masking(rate=0.15, mean_span=3.0, whole_words=False, next_sentence=False)
# The name of a table row, its objective, and its changes to the data config.
TASKS = [
    ("packed causal LM", "causal_lm", dict(packing=True)),
    ("causal LM", "causal_lm", {}),
    ("packed masked LM", "masked_lm", dict(packing=True)),
    ("masked LM", "masked_lm", {}),
    ("span corruption", "span_corruption", dict(length=LENGTH // 4)),
    ("packed translation", "seq2seq", dict(packing=True)),
]
TOKENIZERS = ("byte", "bpe", "wordpiece", "unigram")
SMALL_GPT = dict(decoder_layers=4, width=192, heads=6, feed_forward=768, max_length=LENGTH)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Binds this process to a single core, if the system supports that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def write_text(directory: Path) -> dict[str, str]:
    """Writes documents to text files; returns the keys of `data` that name them."""
    directory.mkdir()
    for number, document in enumerate(pydoc.load().train):
        (directory / f"{number:05}.txt").write_text(document["text"], encoding="utf-8")
    return dict(source="text_files", path=str(directory))


def write_pairs(directory: Path) -> dict[str, str]:
    """Writes translation pairs to files; returns the keys of `data` that name them."""
    directory.mkdir()
    examples = dates.load().train
    step = len(examples) // PAIRS
    for split, first in (("train", 0), ("validation", 1)):
        chosen = [examples[index] for index in range(first, len(examples), step)]
        for language in ("source", "target"):
            lines = "".join(f"{example[language]}\n" for example in chosen)
            (directory / f"{split}.{language}").write_text(lines, encoding="utf-8")
    languages = dict(source_language="source", target_language="target")
    return dict(source="translation_files", path=str(directory), **languages)


def data_config(**keys) -> DataConfig:
    """A `data` section with this benchmark's sizes and the given keys."""
    usual = dict(batch_size=BATCH, length=LENGTH, encoder_length=LENGTH, tokenizer="bpe")
    return DataConfig(**{**default.get_config().data.to_dict(), **usual, **keys})


def examples_in(batch: pipeline.Batch) -> int:
    """Counts examples: segments of packed rows, otherwise rows."""
    if "segment_ids" not in batch:
        return len(batch["inputs"])
    return int(batch["segment_ids"].max(axis=1).sum())


def measure_batches(data: pipeline.Data) -> list[tuple[float, float]]:
    """Returns (examples per second, tokens per second) of each round."""
    rates = []
    for number in range(ROUNDS.value):
        begin = time.perf_counter()
        first = number * BATCHES.value
        batches = [data.train_batch(n) for n in range(first, first + BATCHES.value)]
        seconds = time.perf_counter() - begin
        rates.append(
            tuple(sum(map(count, batches)) / seconds for count in (examples_in, amount_in))
        )
    return rates


def measure_tokenization(data: DataConfig) -> list[float]:
    """Returns megabytes of text per second in each round, including file reads and writes."""
    (component,) = components(data)
    splits = component.splits
    job = PreparationJob(
        splits.digest,
        "train",
        splits.train,
        TokenCache(data).tokenizer([splits]),
        FeatureSpec(("text",)),
    )
    rates = []
    for _ in range(ROUNDS.value):
        with tempfile.TemporaryDirectory() as empty:
            begin = time.perf_counter()
            prepare(job, Path(empty))
            rates.append(splits.description["train_bytes"] / 1e6 / (time.perf_counter() - begin))
    return rates


def wait_share(text: dict[str, str], directory: Path) -> float:
    """Returns the wait share of a small GPT trained by train.py, after the first steps."""
    every = max(1, STEPS.value // 4)
    keys = {f"model.{key}": value for key, value in SMALL_GPT.items()}
    keys |= {f"data.{key}": value for key, value in text.items()}
    keys |= {"data.tokenizer": "bpe", "data.cache_dir": directory / "cache", "data.length": LENGTH}
    keys |= {"data.batch_size": 8, "data.packing": True, "eval.batches": 1, "eval.batch_size": 8}
    keys |= {"steps": STEPS.value, "log_every": every, "optimizer.warmup_steps": 0}
    command = [sys.executable, str(ROOT / "train.py"), f"--config={ROOT}/configs/pydoc.py"]
    command += [f"--workdir={directory / 'run'}"]
    command += [f"--config.{key}={value}" for key, value in keys.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    lines = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    shares = [each[WAIT] for each in reports if each["step"] > every and WAIT in each]
    return statistics.mean(shares)


def best_and_median(rates: Sequence[float], digits: int = 0) -> str:
    """The best and the median rate, as two cells."""
    return f"{max(rates):>11,.{digits}f} {statistics.median(rates):>11,.{digits}f}"


def main(_):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        text, pairs = write_text(directory / "text"), write_pairs(directory / "pairs")
        cache_dir = str(directory / "cache")
        print(f"length {LENGTH}, batches of {BATCH}, one core; best and median of {ROUNDS.value}")
        print(f"{'':20} {'examples/s':>11} {'median':>11} {'tokens/s':>11} {'median':>11}")
        for title, objective, keys in TASKS:
            source = pairs if objective == "seq2seq" else text
            config = data_config(**{**source, **keys, "cache_dir": cache_dir})
            data = pipeline.load(config, objective=objective, masking=MASKING, seed=0)
            with one_core():
                examples, tokens = zip(*measure_batches(data), strict=True)
            print(f"{title:20} {best_and_median(examples)} {best_and_median(tokens)}")
        print(f"\n{'tokenization':20} {'MB/s':>11} {'median':>11}")
        for tokenizer in TOKENIZERS:
            config = data_config(**text, tokenizer=tokenizer, cache_dir=cache_dir)
            with one_core():
                rates = measure_tokenization(config)
            print(f"{tokenizer:20} {best_and_median(rates, digits=1)}")
        if STEPS.value:
            print(f"\na small GPT waits for data {wait_share(text, directory):.1%} of its time")


if __name__ == "__main__":
    app.run(main)
