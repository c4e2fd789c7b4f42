"""Bicubic interpolation of positions, by its properties; test_dinov2.py compares with torch."""

import numpy as np
import pytest

from model.interpolation import bicubic_weights, grid_weights


@pytest.mark.parametrize(("new", "old"), [(3, 5), (7, 5), (16, 37), (5, 1), (1, 4)])
def test_weights_of_a_point_sum_to_1(new, old):
    weights = bicubic_weights(new, old)
    assert weights.shape == (new, old)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)


def test_the_same_size_changes_nothing():
    np.testing.assert_array_equal(grid_weights(4, 4), np.eye(16))


def test_weights_by_hand():
    """Between two of four points: distances 0.5 and 1.5, in the two parts of the kernel."""
    inner = (1.25 * 0.5 - 2.25) * 0.5**2 + 1
    outer = -0.75 * (1.5**3 - 5 * 1.5**2 + 8 * 1.5 - 4)
    np.testing.assert_allclose(bicubic_weights(1, 4), [[outer, inner, inner, outer]], atol=1e-7)


def test_both_directions_are_alike():
    weights = bicubic_weights(7, 5)
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)
