"""Random numbers by address: the n-th stream of a purpose, without drawing those before it."""

import numpy as np

# Streams of different purposes never meet.
SHUFFLE, TRAIN_ROW, EVAL_ROW = range(3)


def generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(seed, index), counter=(0, 0, 0, purpose)))
