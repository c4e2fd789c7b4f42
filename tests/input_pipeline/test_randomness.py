import itertools

from input_pipeline.randomness import EVAL_ROW, SHUFFLE, TRAIN_ROW, generator


def test_streams_are_reproducible_and_all_different():
    addresses = list(itertools.product((0, 1, 2), (SHUFFLE, TRAIN_ROW, EVAL_ROW), (0, 1, 2)))
    streams = [tuple(generator(*address).integers(2**60, size=4)) for address in addresses]
    assert len(set(streams)) == len(addresses)
    assert streams == [tuple(generator(*address).integers(2**60, size=4)) for address in addresses]
