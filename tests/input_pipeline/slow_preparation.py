"""Prepares a table in a process of its own, slowly enough to be watched or killed.

python -m tests.input_pipeline.slow_preparation CACHE_DIR SECONDS_A_CHUNK
"""

import sys
import time
from pathlib import Path

from input_pipeline import preparation
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import ByteTokenizer

EXAMPLES = [{"text": f"example {n} " + "x" * (n % 50)} for n in range(100)]
FEATURE_SPEC = FeatureSpec(("text",), closed=True)
CHUNK = 5  # of which there are twenty


class SlowTokenizer(ByteTokenizer):
    """Counts what it encodes."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds, self.texts, self.fails_after = seconds, [], None

    def encode_batch(self, texts):
        time.sleep(self.seconds)
        if self.fails_after is not None and len(self.texts) >= self.fails_after:
            raise RuntimeError("interrupted")
        self.texts += texts
        return super().encode_batch(texts)


def prepare(cache_dir, tokenizer, examples=EXAMPLES, **keys):
    """Prepares chunk after chunk, each of CHUNK examples."""
    before = preparation.CHUNK, preparation.THREADS
    preparation.CHUNK, preparation.THREADS = CHUNK, 1
    try:
        job = preparation.PreparationJob("source", "train", examples, tokenizer, FEATURE_SPEC)
        return preparation.prepare(job, Path(cache_dir), **keys)
    finally:
        preparation.CHUNK, preparation.THREADS = before


if __name__ == "__main__":
    made = prepare(sys.argv[1], tokenizer := SlowTokenizer(float(sys.argv[2])))
    print(len(made), len(tokenizer.texts))
