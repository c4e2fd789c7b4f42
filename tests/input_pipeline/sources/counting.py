"""A toy source, for tests: documents that count, such as "3 4 5 6"."""

import dataclasses

from experiment.schema import PositiveInt
from input_pipeline.sources.base import Source, Splits, content_digest


@dataclasses.dataclass(frozen=True)
class CountingOptions:
    documents: PositiveInt = 8  # to train on


def load(data):
    texts = [" ".join(map(str, range(n, n + 4))) for n in range(data.source_options.documents + 2)]
    *train, first, second = ({"text": text} for text in texts)
    evals = {"larger": [first, second]}
    return Splits("documents", train, evals, (), {}, content_digest(texts), "memory")


SOURCE = Source("counting", load, "documents", options=CountingOptions)
