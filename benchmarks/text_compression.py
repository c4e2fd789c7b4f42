"""Bits per byte of xz and of a byte n-gram, to compare a language model with.

    python benchmarks/text_compression.py --path=DIR --order=6

DIR has train.txt and validation.txt, plain or gzip. xz has seen the training text before: its score
is the size of both compressed together, minus that of the training text. The n-gram predicts a byte
from the order - 1 bytes before it; it mixes all shorter contexts (Witten-Bell smoothing). Prints a
table in Markdown; evaluate.py prints `bits_per_byte` of a run on the same text.
"""

import lzma
import math
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from experiment import command_line  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline.sources.files.reading import read_text  # noqa: E402

DIRECTORY = flags.DEFINE_string("path", "", "The directory of the text files.")
TRAIN = flags.DEFINE_string("train_split", "train", "The split to learn from.")
EVAL = flags.DEFINE_string("eval_split", "validation", "The split to score on.")
ORDER = flags.DEFINE_integer("order", 6, "Bytes of the longest n-gram.")


def text_of(split: str) -> bytes:
    """The bytes of a split's file; raises ConfigError if there is none."""
    for name in (f"{split}.txt", f"{split}.txt.gz"):
        if (path := Path(DIRECTORY.value, name)).is_file():
            return bytes(read_text(path))
    raise ConfigError(f"--path={DIRECTORY.value} has no {split}.txt and no {split}.txt.gz")


def xz_bits(train: bytes, text: bytes) -> float:
    """Bits per byte of the text for xz -9e, which has seen the training text."""
    preset = 9 | lzma.PRESET_EXTREME
    sizes = [len(lzma.compress(each, preset=preset)) for each in (train, train + text)]
    return 8 * (sizes[1] - sizes[0]) / len(text)


def ngram_bits(train: bytes, text: bytes, order: int) -> float:
    """Bits per byte of the text for an n-gram of the training text."""
    pairs, totals, kinds = Counter(), Counter(), Counter()
    for size in range(order):
        observed = Counter(train[i : i + size + 1] for i in range(len(train) - size))
        pairs |= observed
        for ngram, count in observed.items():
            totals[ngram[:-1]] += count
            kinds[ngram[:-1]] += 1  # different bytes after this context
    bits, before = 0.0, train[len(train) - order + 1 :] if order > 1 else b""
    stream = before + text
    for place in range(len(before), len(stream)):
        probability = 1 / 256
        for size in range(order):
            context = stream[place - size : place]
            if not totals[context]:
                break
            count = pairs[context + stream[place : place + 1]]
            new = kinds[context]
            probability = (count + new * probability) / (totals[context] + new)
        bits -= math.log2(probability)
    return bits / len(text)


def main() -> None:
    if ORDER.value < 1:
        raise ConfigError(f"--order={ORDER.value} must be at least 1")
    train, text = text_of(TRAIN.value), text_of(EVAL.value)
    print(f"{len(train):,} bytes to learn from, {len(text):,} to score on\n")
    print("| model | bits per byte |\n|---|---|")
    print(f"| xz, after the training text | {xz_bits(train, text):.3f} |", flush=True)
    print(f"| {ORDER.value}-gram | {ngram_bits(train, text, ORDER.value):.3f} |")


if __name__ == "__main__":
    command_line.launch(main)
