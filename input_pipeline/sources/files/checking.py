"""Reads every example once, so that bad records are found before training."""

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from absl import logging
from PIL import Image
from tqdm import tqdm

from input_pipeline.atomic_directory import make_directory
from input_pipeline.config import DataConfig
from input_pipeline.preparation import refuse_bad_records
from input_pipeline.sources.base import BadRecordError, Example, LazyList, content_digest
from input_pipeline.sources.image_decoding import FORMATS
from input_pipeline.token_cache import cache_directory


def check(examples: Sequence[Example], max_bad_records: int, record: Path) -> Sequence[Example]:
    """The examples that can be read; raises ConfigError if more than `max_bad_records` cannot.

    If all can be read, the directory `record` is made, and later runs skip the check. Problems are
    not recorded: the disk may have caused them.
    """
    if record.exists():
        return examples
    faults = mapped_in_threads(partial(_fault, examples), range(len(examples)), "checking")
    bad = [fault for fault in faults if fault]
    if not bad:
        make_directory(record)
        return examples
    refuse_bad_records(bad, max_bad_records)
    for fault in bad:
        logging.warning("skipped: %s", fault)
    good = [index for index, fault in enumerate(faults) if not fault]
    return LazyList(examples.__getitem__, good)


def check_record(data: DataConfig, digest: str, split: str) -> Path:
    """The directory that exists once this Pillow version has read all images of a split."""
    key = content_digest([digest, split, Image.__version__, *FORMATS])[:32]
    return cache_directory(data) / f"checked-{key}"


def mapped_in_threads(function: Callable, items: Sequence, title: str) -> list[Any]:
    """[function(item) for item in items], in threads, with a progress bar on a terminal."""
    with ThreadPool() as pool:
        results = pool.imap(function, items, chunksize=16)
        return list(tqdm(results, title, len(items), leave=False, disable=None))


def _fault(examples: Sequence[Example], index: int) -> str:
    """The problem with an example, or "" if it can be read."""
    try:
        examples[index]
    except BadRecordError as error:
        return str(error)
    return ""
