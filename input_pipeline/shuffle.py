"""Shuffles any number of examples, index by index, without storing the order.

A Feistel network is a keyed permutation of the numbers below a power of four. Applying it again to
results outside the wanted range, until they are inside, permutes that range alone (cycle walking).
Each epoch has its own key.
"""

import numpy as np

from input_pipeline.randomness import EVAL_ORDER, SHUFFLE, generator

ROUNDS = 6  # four suffice for large ranges; small ranges mix better with more


def shuffled(positions: np.ndarray, size: int, seed: int, stream: int = 0) -> np.ndarray:
    """The indices at these positions of an endless order that shuffles every epoch again.

    positions: integers, any shape. size: examples in an epoch. Streams are independent.
    """
    epochs, offsets = np.divmod(np.asarray(positions, np.uint64), np.uint64(size))
    indices = np.empty_like(offsets)
    for epoch in np.unique(epochs):
        rng = generator(seed, SHUFFLE, int(epoch) | stream << 40)
        keys = rng.integers(2**64, size=ROUNDS, dtype=np.uint64)
        here = epochs == epoch
        indices[here] = permuted(offsets[here], size, keys)
    return indices.astype(np.int64)


def sampled(count: int, size: int, purpose: int = EVAL_ORDER) -> np.ndarray:
    """The first `count` numbers of one fixed permutation of range(size).

    The permutation depends on `size` and `purpose` alone, so a smaller sample is the beginning of a
    larger one.
    """
    keys = generator(0, purpose, 0).integers(2**64, size=ROUNDS, dtype=np.uint64)
    return permuted(np.arange(count, dtype=np.uint64), size, keys).astype(np.int64)


def permuted(values: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Applies the permutation of range(size) that these round keys define."""
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
    """The finaliser of splitmix64: every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
