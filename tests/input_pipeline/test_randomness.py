import itertools

import numpy as np

from input_pipeline.randomness import EVAL_ROW, SHUFFLE, TRAIN_ROW, generator


def test_streams_are_reproducible_and_all_different():
    addresses = list(itertools.product((0, 1, 2), (SHUFFLE, TRAIN_ROW, EVAL_ROW), (0, 1, 2)))
    streams = [tuple(generator(*address).integers(2**60, size=4)) for address in addresses]
    assert len(set(streams)) == len(addresses)
    assert streams == [tuple(generator(*address).integers(2**60, size=4)) for address in addresses]


def test_an_address_is_the_key_and_the_counter_of_philox():
    expected = np.random.Philox(key=(3, 2**41 + 5), counter=(0, 0, 0, TRAIN_ROW))
    found = generator(3, TRAIN_ROW, 2**41 + 5)
    assert found.integers(2**60) == np.random.Generator(expected).integers(2**60)
