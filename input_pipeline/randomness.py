"""Random numbers by address: the n-th stream of a purpose, without drawing those before it."""

import numpy as np
from numpy.random.bit_generator import ISeedSequence

# Streams of different purposes never meet.
SHUFFLE, TRAIN_ROW, EVAL_ROW, TRAINED_LIST, HELD_OUT_LIST, EVAL_ORDER = range(6)


class _Key(ISeedSequence):
    """A key to be used as it is. Given by `key=`, Philox would first fetch entropy, for nothing."""

    def __init__(self, *words: int):
        self._words = words

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        assert n_words == len(self._words)
        return np.array(self._words, dtype)


def generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(_Key(seed, index), counter=(0, 0, 0, purpose)))
