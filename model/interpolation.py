"""Bicubic interpolation of a table of positions, for images of another size."""

import numpy as np

CUBIC = -0.75  # of the kernel, as in PyTorch


def bicubic_weights(new: int, old: int) -> np.ndarray:
    """The weights (new, old) of `old` points in each of `new` points over the same range.

    As torch.nn.functional.interpolate(mode="bicubic", align_corners=False): points are the centres
    of equal parts, and those beyond the ends repeat the last one.
    """
    places = (np.arange(new) + 0.5) * old / new - 0.5
    first = np.floor(places).astype(int) - 1
    weights = np.zeros((new, old))
    for tap in range(4):
        distance = np.abs(places - (first + tap))
        inner = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
        outer = CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        column = np.clip(first + tap, 0, old - 1)
        np.add.at(weights, (np.arange(new), column), np.where(distance <= 1, inner, outer))
    return weights.astype(np.float32)


def grid_weights(new: int, old: int) -> np.ndarray:
    """The same for squares of points in rows, (new ** 2, old ** 2)."""
    weights = bicubic_weights(new, old)
    return np.kron(weights, weights)
