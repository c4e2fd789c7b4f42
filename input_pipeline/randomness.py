"""Random streams by number: stream n of a purpose, without drawing the streams before it."""

import numpy as np
from numpy.random.bit_generator import ISeedSequence

# Streams of different purposes are independent.
SHUFFLE, TRAIN_ROW, EVAL_ROW, TRAIN_LIST, EVAL_LIST, EVAL_ORDER = range(6)
KEYED_ROW, EVAL_KEYED_ROW, TRAIN_SAMPLE = range(6, 9)


class _Key(ISeedSequence):
    """Passes its words to Philox as the key. Philox(key=...) would first read unused entropy."""

    def __init__(self, *words: int):
        self._words = words

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        assert n_words == len(self._words)
        return np.array(self._words, dtype)


def generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    """Stream `index` of a purpose (one of the constants above)."""
    return np.random.Generator(np.random.Philox(_Key(seed, index), counter=(0, 0, 0, purpose)))
