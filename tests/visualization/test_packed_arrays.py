"""Arrays that go into a page come back within the stated error."""

import base64
import zlib

import numpy as np
import pytest

from tests.visualization import example_views
from visualization import packed_arrays


@pytest.mark.parametrize("bits", [8, 16])
def test_weights_come_back_within_the_stated_error(bits):
    weights = example_views.classifier_view().maps[0].weights_lhts
    weights = np.concatenate([weights, np.zeros_like(weights[:1]), np.ones_like(weights[:1])])
    packed = packed_arrays.pack(weights, bits)
    assert len(packed["parts"]) == len(weights)
    read = packed_arrays.unpack(packed, weights.shape)
    bound = packed_arrays.error_bound(weights, bits)
    assert np.all(np.abs(read - weights) <= bound + 1e-9)
    assert bound.max() < {8: 0.004, 16: 1.6e-5}[bits]
    np.testing.assert_array_equal(read[weights == 0], 0)
    np.testing.assert_array_equal(read[weights == 1], 1)


@pytest.mark.parametrize("bits", [8, 16])
def test_signed_values_come_back_within_the_stated_error(bits):
    values = np.random.default_rng(0).normal(size=(2, 3, 40)).astype(np.float32) * 1e-4
    packed = packed_arrays.pack(values, bits, signed=True)
    read = packed_arrays.unpack(packed, values.shape)
    bound = packed_arrays.error_bound(values, bits, True, packed["scale"])
    assert np.all(np.abs(read - values) <= bound * 1.001)
    far = np.abs(values) > bound
    np.testing.assert_array_equal(np.sign(read[far]), np.sign(values[far]))


def test_arrays_of_zeros_stay_zeros():
    packed = packed_arrays.pack(np.zeros((2, 4), np.float32), 8, signed=True)
    np.testing.assert_array_equal(packed_arrays.unpack(packed, (2, 4)), 0)


def test_masks_are_eight_cells_to_a_byte():
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.5
    for text, expected in zip(packed_arrays.pack_bits(mask), mask, strict=True):
        content = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
        assert len(content) == 5
        np.testing.assert_array_equal(np.unpackbits(content)[:35].reshape(5, 7), expected)
