"""WAV files -> spectrograms: the loudness of bands of pitch, frame by frame."""

import dataclasses
import functools
import wave
from pathlib import Path
from typing import BinaryIO

import numpy as np

from experiment.schema import PositiveFloat, PositiveInt
from input_pipeline.sources.base import BadRecordError

WINDOW_SECONDS = 0.025  # what one frame is computed from
LOWEST_HERTZ = 40.0
FREQUENCY_STEP_HERTZ = 25.0  # at most, so that even the narrow low bands have a frequency
RANGE_DECIBEL = 80.0  # quieter values are raised to this far below the loudest


@dataclasses.dataclass(frozen=True)
class SpectrogramSpec:
    """How a sound becomes an array; the options of sound_files."""

    seconds: PositiveFloat = 1.28  # longer sounds lose their end, shorter ones get silence
    hop_milliseconds: PositiveFloat = 10.0  # from one frame to the next
    bands: PositiveInt = 64  # of pitch, equally wide on the mel scale
    highest_hertz: PositiveFloat = 7600.0  # the end of the last band

    def problems(self):
        if self.frames < 1:
            yield (
                f"data.options.seconds={self.seconds:g} is shorter than one frame of "
                f"data.options.hop_milliseconds={self.hop_milliseconds:g}; raise it"
            )
        if self.highest_hertz <= LOWEST_HERTZ:
            yield (
                f"data.options.highest_hertz={self.highest_hertz:g} must be above "
                f"{LOWEST_HERTZ:g}, where the first band begins"
            )

    @property
    def frames(self) -> int:
        return round(1000 * self.seconds / self.hop_milliseconds)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frames, bands, 1): the shape of a spectrogram."""
        return self.frames, self.bands, 1


def read_wav(file: Path | BinaryIO, name: str) -> tuple[np.ndarray, int]:
    """The samples of a WAV file, from -1 to 1 as float32, and its sample rate.

    Channels are averaged. Raises BadRecordError, which names the file, if it cannot be decoded.
    """
    try:
        with wave.open(str(file) if isinstance(file, Path) else file) as reader:
            channels, size, rate, count, *_ = reader.getparams()
            content = reader.readframes(count)
    except (wave.Error, EOFError, OSError, RuntimeError) as error:
        raise BadRecordError(
            f"{name} is no WAV file that can be read ({str(error) or 'it ends too early'}); "
            "convert it to PCM with 16 bits, for example with ffmpeg -i IN -c:a pcm_s16le OUT.wav"
        ) from error
    if len(content) != count * channels * size:
        raise BadRecordError(
            f"{name} is cut off: it has {len(content):,} bytes of sound, and its header says "
            f"{count * channels * size:,}; fetch it again"
        )
    if not count or rate < 1:
        raise BadRecordError(f"{name} has no sound: {count} samples; leave it out")
    if size == 1:  # the only unsigned size
        samples = np.frombuffer(content, np.uint8).astype(np.int32) - 128
    else:  # little-endian, moved to the upper bytes of 32 bits
        padded = np.zeros((count * channels, 4), np.uint8)
        padded[:, 4 - size :] = np.frombuffer(content, np.uint8).reshape(-1, size)
        samples, size = padded.view("<i4")[:, 0], 4
    scaled = samples.reshape(count, channels).mean(axis=1) / 2 ** (8 * size - 1)
    return scaled.astype(np.float32), rate


def spectrogram(samples: np.ndarray, rate: int, spec: SpectrogramSpec, name: str) -> np.ndarray:
    """The log-mel spectrogram of a sound: decibels below its loudest value, float32 `spec.shape`.

    Frames are Hann windows of 25 ms, and bands are triangles on the mel scale. Both are set in
    seconds and hertz, so sounds of different sample rates can be compared. Values are from -80 to
    0, whatever the volume. Raises BadRecordError for silence, which has no loudest value.
    """
    if spec.highest_hertz > rate / 2:
        raise BadRecordError(
            f"{name} has {rate:,} samples per second, so nothing above {rate / 2:g} Hz; set "
            f"data.options.highest_hertz to at most {rate / 2:g}"
        )
    samples = samples[: round(spec.seconds * rate)]
    if (samples == samples[:1]).all():
        raise BadRecordError(
            f"{name} is silent: all samples of its first {spec.seconds:g} s are equal; leave it out"
        )
    window, bands = _window_and_bands(rate, spec)
    hop = rate * spec.hop_milliseconds / 1000
    starts = np.round(np.arange(spec.frames) * hop).astype(int)
    sound = np.zeros(starts[-1] + len(window), np.float32)
    sound[: len(samples)] = (samples - samples.mean())[: len(sound)]
    frames = sound[starts[:, None] + np.arange(len(window))] * window
    spectrum = np.fft.rfft(frames, 2 * (len(bands) - 1))
    power = (spectrum.real**2 + spectrum.imag**2) @ bands
    loudest = power.max()
    smallest = np.finfo(np.float32).tiny
    decibels = 10 * np.log10(np.maximum(power / loudest, smallest))
    return np.maximum(decibels, -RANGE_DECIBEL)[..., None].astype(np.float32)


def band_hertz(spec: SpectrogramSpec, bands: np.ndarray) -> np.ndarray:
    """The frequency in the middle of bands; 2.5 is halfway between bands 2 and 3.

    Band m begins in the middle of band m - 1 and ends in the middle of band m + 1.
    """
    lowest, highest = (_mel(hertz) for hertz in (LOWEST_HERTZ, spec.highest_hertz))
    mels = lowest + (bands + 1) * (highest - lowest) / (spec.bands + 1)
    return 700 * (10 ** (mels / 2595) - 1)


@functools.lru_cache(maxsize=8)
def _window_and_bands(rate: int, spec: SpectrogramSpec) -> tuple[np.ndarray, np.ndarray]:
    """The window, (samples), and the weight of each frequency in each band."""
    size = max(2, round(WINDOW_SECONDS * rate))
    points = 1 << (max(size, round(rate / FREQUENCY_STEP_HERTZ)) - 1).bit_length()
    frequencies = np.arange(points // 2 + 1) * rate / points
    lowest, highest = (_mel(hertz) for hertz in (LOWEST_HERTZ, spec.highest_hertz))
    edges = 700 * (10 ** (np.linspace(lowest, highest, spec.bands + 2) / 2595) - 1)
    rise = (frequencies[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - frequencies[:, None]) / np.diff(edges)[1:]
    bands = np.maximum(0, np.minimum(rise, fall))
    return np.hanning(size).astype(np.float32), bands.astype(np.float32)


def _mel(hertz: float) -> float:
    return 2595 * np.log10(1 + hertz / 700)
