"""Reading every example once, before a run depends on it."""

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

from absl import logging
from tqdm import tqdm

from input_pipeline.source import BadRecordError, Example
from schema import ConfigError


class Selection(Sequence):
    """Some of the examples, read as lazily as the examples themselves."""

    def __init__(self, examples: Sequence[Example], indices: Sequence[int]):
        self._examples, self._indices = examples, indices

    def __len__(self):
        return len(self._indices)

    def __getitem__(self, index: int) -> Example:
        return self._examples[self._indices[index]]


def check(examples: Sequence[Example], max_bad_records: int) -> Sequence[Example]:
    """The examples that can be read, if at most so many others cannot; those are logged."""
    faults = in_threads(partial(_fault, examples), range(len(examples)), "checking")
    bad = [fault for fault in faults if fault]
    if len(bad) > max_bad_records:
        raise ConfigError(
            f"{len(bad)} of {len(examples)} examples cannot be used, more than "
            f"data.max_bad_records={max_bad_records}; the first: {bad[0]}"
        )
    if not bad:
        return examples
    for fault in bad:
        logging.warning("skipped: %s", fault)
    return Selection(examples, [index for index, fault in enumerate(faults) if not fault])


def in_threads(function: Callable, items: Sequence, title: str) -> list[Any]:
    """[function(item) for item in items], with a progress bar if there is a terminal."""
    with ThreadPool() as pool:
        results = pool.imap(function, items, chunksize=16)
        return list(tqdm(results, title, len(items), leave=False, disable=None))


def _fault(examples: Sequence[Example], index: int) -> str:
    try:
        examples[index]
    except BadRecordError as error:
        return str(error)
    return ""
