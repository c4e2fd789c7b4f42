"""Mean and standard deviation of training signals, with which the model normalises its input."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.sources.base import Example

MOST_EXAMPLES = 500  # more would read much without changing the result much
DIGITS = 6  # so that the result does not depend on the machine's order of additions


def mean_and_std(examples: Sequence[Example]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, over evenly spaced examples.

    A channel that is constant has a deviation of 1, so that it becomes 0.
    """
    count = min(len(examples), MOST_EXAMPLES)
    total, squares, values = 0.0, 0.0, 0
    for index in np.linspace(0, len(examples) - 1, count).astype(int).tolist():
        signal = examples[index]["signal"].astype(np.float64)
        axes = tuple(range(signal.ndim - 1))
        total, squares = total + signal.sum(axes), squares + (signal**2).sum(axes)
        values += signal[..., 0].size
    mean_c = np.atleast_1d(total / max(values, 1))
    std_c = np.sqrt(np.maximum(np.atleast_1d(squares / max(values, 1)) - mean_c**2, 0))
    std_c = np.where(std_c > 1e-6 * (1 + abs(mean_c)), std_c, 1)
    return _rounded(mean_c), _rounded(std_c)


def _rounded(values_c: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values_c.tolist())
