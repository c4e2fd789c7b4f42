"""Recall: a row of symbols whose class is its first symbol, the key: "gbkamc..." is of class g.

All symbols after the key are noise from the same alphabet, independent of the key. So a model that
reads its answer at the end of the row needs one token, `distance` symbols before the end. Every
symbol is one character and, with data.tokenizer=byte, one token.

Training rows have all distances and classes equally often. There is one evaluation set for each
distance, `distance_064` for 64; its rows do not depend on the other distances. With key_place=last
the same rows end with their key: a control in which the answer is next to the end.

The place of the answer decides what is far. A decoder with pooling=last reads at the end. An
encoder with pooling=first reads at the beginning, so for it key_place=last is far, and
key_place=first the control. An encoder with pooling=mean reads everywhere.

A hash of the row decides whether it is for training or for evaluation; a row for the wrong split
is drawn again.

Baseline: without its place, the best guess is the commonest symbol. With 16 classes that is right
for 24% of the rows at distance 8, 13% at 64 and 9% at 512; guessing at random gets 6%.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from string import ascii_lowercase
from typing import TYPE_CHECKING, Annotated, Literal

from experiment.schema import Bounds, PositiveInt
from input_pipeline import randomness
from input_pipeline.sources.base import Source, Splits, content_digest, hash_fraction

if TYPE_CHECKING:
    from input_pipeline.config import DataConfig

SEED = 0  # the rows are the same in every run; the run's seed shuffles them
TRAIN_SIZE, EVAL_SIZE = 65_536, 512  # rows to train on; rows of each evaluation set
EVAL_SHARE = 0.25  # of all possible rows; a larger share takes fewer draws
FEWEST = 1000  # possible rows of a class, so that each split has some of every class


@dataclasses.dataclass(frozen=True)
class RecallOptions:
    """`data.options` of this source."""

    distances: tuple[PositiveInt, ...] = (8, 16, 32, 64, 128, 256, 512)  # symbols after the key
    classes: Annotated[int, Bounds(at_least=2, at_most=len(ascii_lowercase))] = 16
    key_place: Literal["first", "last"] = "first"  # last: nothing is far from the end

    def problems(self) -> Iterator[str]:
        if not self.distances:
            yield "data.options.distances=() has no distance; give at least one, such as (64,)"
        elif len(set(self.distances)) < len(self.distances):
            yield f"data.options.distances={self.distances} has a distance twice; remove one"
        elif (fewest := self.classes ** min(self.distances)) < FEWEST:
            enough = math.ceil(math.log(FEWEST, self.classes))
            yield (
                f"data.options.distances={self.distances}: at distance {min(self.distances)}, a "
                f"class has only {fewest} rows; with data.options.classes={self.classes} the "
                f"smallest distance is {enough}"
            )

    def problems_with(self, data: "DataConfig") -> Iterator[str]:
        """Yields problems with other keys of the `data` section."""
        needed = max(self.distances) + 3
        if data.tokenizer == "byte" and needed > data.length:
            yield (
                f"data.length={data.length} would cut rows off: set it to at least {needed}, for "
                f"the key, {max(self.distances)} more symbols (data.options.distances), cls and sep"
            )


class KeyedRows(Sequence):
    """The rows of one split, each generated on access.

    `distance` is that of an evaluation set; None: training rows, with all distances.
    """

    def __init__(self, options: RecallOptions, size: int, distance: int | None = None):
        self._options, self._size, self._distance = options, size, distance

    def __len__(self):
        return self._size

    def __getitem__(self, index: int) -> dict[str, str | int]:
        if not 0 <= index < self._size:
            raise IndexError(index)
        distances, classes = self._options.distances, self._options.classes
        is_eval = self._distance is not None
        if is_eval:
            distance, purpose = self._distance, randomness.EVAL_KEYED_ROW
            number = distance << 32 | index  # so that evaluation sets differ
        else:
            distance, purpose = distances[index // classes % len(distances)], randomness.KEYED_ROW
            number = index
        rng, key = randomness.generator(SEED, purpose, number), index % classes
        while True:
            noise = "".join(ascii_lowercase[i] for i in rng.integers(classes, size=distance))
            if (hash_fraction(f"{ascii_lowercase[key]} {noise}") < EVAL_SHARE) == is_eval:
                break
        is_first = self._options.key_place == "first"
        text = f"{ascii_lowercase[key]}{noise}" if is_first else f"{noise}{ascii_lowercase[key]}"
        return {"text": text, "label": key}


def load(data: "DataConfig") -> Splits:
    """Rows as texts, with their keys as labels; one evaluation set for each distance."""
    options = data.source_options
    digits = max(3, len(str(max(options.distances))))  # so that names sort as numbers do
    evals = {
        f"distance_{distance:0{digits}}": list(KeyedRows(options, EVAL_SIZE, distance))
        for distance in options.distances
    }
    facts = dataclasses.asdict(options)
    return Splits(
        "labelled",
        KeyedRows(options, TRAIN_SIZE),
        evals,
        tuple(ascii_lowercase[: options.classes]),
        {"numpy": version("numpy"), **facts},
        content_digest([repr(facts), str(TRAIN_SIZE), repr(evals)]),
        # Only rows whose lengths are known can be sorted by length.
        "memory" if data.sorts_by_length else "none",
    )


SOURCE = Source("recall", load, "labelled", options=RecallOptions)
