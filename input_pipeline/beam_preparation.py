"""Tokenizes a split with Apache Beam, for a corpus that is too large for one machine.

Workers make the chunks of preparation.py. No text is sent: a worker gets the config and the number
of a chunk, and opens the source itself. So all workers need this code, and the files at data.path
and data.cache_dir, under the same paths as on the machine that starts them, or in a bucket. Each
machine then copies the data to its own disk.
"""

import contextlib
import functools
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.object_copy import with_local_path
from input_pipeline.preparation import (
    ChunkMaker,
    PreparationJob,
    make_chunk,
    read_chunk,
)
from input_pipeline.sources.registry import Component, components
from input_pipeline.token_cache import cache_directory
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import Tokenizer
from storage.object_store import is_remote, remote_path


def on_beam(data: DataConfig, options: Sequence[str]) -> ChunkMaker:
    """A chunk maker that runs on Beam. `options` are Beam's own, such as --runner=FlinkRunner."""
    try:
        import apache_beam as beam
    except ImportError:
        raise ConfigError("--beam needs a package: pip install 'backbone[beam]'") from None

    def make_chunks(job: PreparationJob, partial: Path) -> Iterator[list[str]]:
        make = functools.partial(
            _make_chunk_anywhere,
            data=data,
            key=job.key,
            split=job.split,
            tokenizer=job.tokenizer,
            features=job.features,
            partial=os.fspath(partial if is_remote(partial) else partial.absolute()),
        )
        with _pipeline(options) as pipeline:
            numbers = pipeline | "number chunks" >> beam.Create(range(job.chunk_count))
            # Without this step, the worker that numbers the chunks would make them all.
            spread = numbers | "spread over workers" >> beam.Reshuffle()
            spread | "make chunks" >> beam.Map(make)
        for number in range(job.chunk_count):
            try:
                yield read_chunk(partial, number).bad
            except FileNotFoundError:
                raise ConfigError(
                    f"a Beam worker wrote to another data.cache_dir than {partial.parent}; it "
                    "must be a directory that all machines share"
                ) from None

    _pipeline(options)  # refuses bad options early
    return make_chunks


def _pipeline(options: Sequence[str]):
    """A Beam pipeline; raises ConfigError if Beam rejects the options."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = PipelineOptions(list(options))
            parsed.get_all_options()  # otherwise they are parsed only when the pipeline runs
            return beam.Pipeline(options=parsed)
    except SystemExit:
        # Beam prints all its options, then the reason, and exits.
        raise ConfigError(f"Beam: {said.getvalue().splitlines()[-1]}") from None
    except ValueError as error:
        raise ConfigError(f"Beam: {error}") from error


@functools.lru_cache(maxsize=1)
def _opened(data: DataConfig, key: str) -> Sequence[Component]:
    """Opens the source once for all chunks of a job, because opening it may read all files."""
    del key
    return components(with_local_path(data, cache_directory(data)))


def _make_chunk_anywhere(
    number: int,
    *,
    data: DataConfig,
    key: str,
    split: str,
    tokenizer: Tokenizer,
    features: FeatureSpec,
    partial: str,
) -> None:
    """Makes chunk `number` of the job that has this key, on a worker."""
    for component in _opened(data, key):
        splits = component.splits
        examples = splits.train if split == data.train_split else splits.evals.get(split, ())
        job = PreparationJob(splits.digest, split, examples, tokenizer, features)
        # Equal keys mean equal text, tokenizer and code, and so equal chunks.
        if job.key == key:
            make_chunk(job, remote_path(partial) if is_remote(partial) else Path(partial), number)
            return
    raise ConfigError(
        f"a Beam worker finds another {split!r} split, or other code, than the machine that "
        f"started it; data.path={data.path!r} must hold the same files on both"
    )
