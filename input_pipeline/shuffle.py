"""A shuffled order of any number of examples, found index by index and never held in memory.

A Feistel network is a keyed permutation of the numbers below a power of four. Applied again to
whatever falls outside the wanted range, until it falls inside, it permutes that range alone
(cycle walking). Each epoch has its own key.
"""

import numpy as np

from input_pipeline.randomness import EVAL_ORDER, SHUFFLE, generator

ROUNDS = 6  # four suffice for large ranges; small ones mix better with more


def shuffled(positions: np.ndarray, size: int, seed: int, stream: int = 0) -> np.ndarray:
    """The examples at these places in the endless order: epoch after epoch, each shuffled anew.

    Different streams have nothing in common.
    """
    epochs, offsets = np.divmod(np.asarray(positions, np.uint64), np.uint64(size))
    indices = np.empty_like(offsets)
    for epoch in np.unique(epochs):
        rng = generator(seed, SHUFFLE, int(epoch) | stream << 40)
        keys = rng.integers(2**64, size=ROUNDS, dtype=np.uint64)
        here = epochs == epoch
        indices[here] = permuted(offsets[here], size, keys)
    return indices.astype(np.int64)


def sampled(count: int, size: int) -> np.ndarray:
    """The first `count` numbers of one fixed permutation of range(size).

    The permutation depends on `size` alone, so a smaller sample is the beginning of a larger one.
    """
    keys = generator(0, EVAL_ORDER, 0).integers(2**64, size=ROUNDS, dtype=np.uint64)
    return permuted(np.arange(count, dtype=np.uint64), size, keys).astype(np.int64)


def permuted(values: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Where the permutation of range(size) with these round keys sends each of the values."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(values, half_bits, keys)
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = values >= size
    return values


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64(2**half_bits - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << bits | right


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
