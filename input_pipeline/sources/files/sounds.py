"""The user's sounds in classes, in folders of WAV files:

    <split>/<class>/*.wav
    <class>/*.wav         without splits: data.eval_share of the sounds of each class is held out

An example is the spectrogram of a sound.
"""

import contextlib
import math
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from absl import logging

from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files.checking import check, check_record
from input_pipeline.sources.files.class_folders import ClassFolders, LabelledFile
from input_pipeline.sources.signal_statistics import mean_and_std
from input_pipeline.sources.spectrogram import SpectrogramSpec, read_wav, spectrogram

# Raise this when the same file gives another spectrogram than before.
VERSION = 1
CACHE_BYTES = 2**28  # of the spectrograms of a split


def read_header(file: BinaryIO) -> tuple[int, float] | None:
    """The sample rate of a WAV file and its seconds, or None if `read_wav` would refuse it."""
    with contextlib.suppress(Exception), wave.open(file) as reader:
        return reader.getframerate(), reader.getnframes() / reader.getframerate()
    return None


FOLDERS = ClassFolders("sound_files", "sounds", (".wav",), read_header)


class SoundFiles(Sequence):
    """Sound files with labels, decoded on first access; the first ones stay in memory."""

    def __init__(self, directory: Path, files: Sequence[LabelledFile], spec: SpectrogramSpec):
        self._directory, self._files, self._spec = directory, files, spec
        self._most_cached = CACHE_BYTES // (4 * math.prod(spec.shape))
        self._cache: dict[int, np.ndarray] = {}

    def __len__(self):
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        path, label = self._files[index]
        signal = self._cache.get(index)
        if signal is None:
            signal = spectrogram(*read_wav(path, str(path)), self._spec, str(path))
            if len(self._cache) < self._most_cached:
                self._cache[index] = signal
        name = path.relative_to(self._directory).as_posix()
        return {"signal": signal, "label": label, "name": name}


def load(data: DataConfig) -> Splits:
    """The sounds at data.path; raises ConfigError if they cannot be used."""
    spec = data.source_options
    directory = FOLDERS.directory(data)
    found = FOLDERS.open(directory, data)
    digest = content_digest([f"{VERSION} {spec}", *found.digests])
    headers = [header for _, header in found.headers if header]
    _warn_of_long([seconds for _, seconds in headers], spec.seconds)

    def checked(split: str, files: Sequence[LabelledFile]) -> Sequence[Example]:
        record = check_record(data, digest, split)
        return check(SoundFiles(directory, files, spec), data.max_bad_records, record)

    train = checked(data.train_split, found.train)
    return Splits(
        kind="sounds",
        train=train,
        evals={data.eval_split: checked(data.eval_split, found.eval)},
        labels=found.classes,
        description={"sample_rates": sorted({rate for rate, _ in headers}), **found.description},
        digest=digest,
        mean_and_std=mean_and_std(train),
    )


def _warn_of_long(seconds: Sequence[float], limit: float) -> None:
    longer = sum(each > limit for each in seconds)
    if longer:
        logging.warning(
            "%d of %d sounds are longer than data.options.seconds=%g and lose their end; the "
            "longest has %.2f s",
            longer, len(seconds), limit, max(seconds),
        )  # fmt: skip


def outline(data: DataConfig) -> Example:
    """A made-up example, with the shapes of all examples."""
    return {"signal": np.zeros(data.source_options.shape, np.float32), "label": 0}


def read(data: DataConfig, path: Path) -> Example:
    """The spectrogram of a file."""
    return {"signal": spectrogram(*read_wav(path, str(path)), data.source_options, str(path))}


SOURCE = Source("sound_files", load, "sounds", "path", SpectrogramSpec, outline=outline, read=read)
