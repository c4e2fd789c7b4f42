"""A fixed sample of the training examples: `data.train_examples`."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from input_pipeline.randomness import TRAIN_SAMPLE
from input_pipeline.shuffle import sampled
from input_pipeline.sources.base import Example, Splits, content_digest


class SampledExamples(Sequence):
    """The examples at some indices, in the order of the data. They are read when asked for."""

    def __init__(self, examples: Sequence[Example], indices: np.ndarray):
        self._examples, self._indices = examples, np.sort(indices)

    def __len__(self):
        return len(self._indices)

    def __getitem__(self, place: int) -> Example:
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        index = int(self._indices[place])
        example = self._examples[index]
        if not example.get("ends", True):
            is_followed = place + 1 < len(self) and self._indices[place + 1] == index + 1
            # The next piece of the text may be left out: then the text ends here.
            return {**example, "ends": not is_followed}
        return example


def with_train_sample(splits: Splits, count: int) -> Splits:
    """The same data with `count` of its training examples.

    One permutation, which depends on the number of training examples alone, chooses them. So all
    runs have the same sample, and a smaller sample is a part of a larger one.
    """
    size = len(splits.train)
    chosen = sampled(count, size, purpose=TRAIN_SAMPLE)
    return dataclasses.replace(
        splits,
        train=SampledExamples(splits.train, chosen),
        description={**splits.description, "train_examples": count, "train_examples_of": size},
        # Tables of tokens and trained tokenizers are stored by this digest.
        digest=content_digest([splits.digest, f"{count} training examples"]),
    )
