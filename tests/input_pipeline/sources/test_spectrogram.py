"""WAV files against their bytes, and spectrograms against sums over samples."""

import math
import struct

import numpy as np
import pytest

from experiment.schema import build
from input_pipeline.sources.base import BadRecordError
from input_pipeline.sources.spectrogram import (
    SpectrogramSpec,
    _window_and_bands,
    read_wav,
    spectrogram,
)
from tests.input_pipeline.sources.waves import tone, write_wav

SPEC = SpectrogramSpec(seconds=0.08, hop_milliseconds=20.0, bands=6, highest_hertz=1800.0)


def wav(content, channels=1, bits=16, rate=8000, kind=1, says=None):
    """The bytes of a WAV file; its header says that the content has `says` bytes."""
    size = channels * bits // 8
    format = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, rate * size, size, bits)
    says = len(content) if says is None else says
    body = b"WAVE" + format + struct.pack("<4sI", b"data", says) + content
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def mel(hertz):
    return 2595 * math.log10(1 + hertz / 700)


def by_sums(samples, rate, spec):
    """The spectrogram in float64, with one sum over samples for each frequency of each frame."""
    size = round(0.025 * rate)
    points = 1
    while points < size or rate / points > 25:
        points *= 2
    count = round(spec.seconds * rate)
    samples = np.asarray(samples[:count], np.float64)
    samples = samples - samples.mean()
    edges = np.linspace(mel(40), mel(spec.highest_hertz), spec.bands + 2)
    edges = [700 * (10 ** (edge / 2595) - 1) for edge in edges]
    power = np.zeros((spec.frames, spec.bands))
    for frame in range(spec.frames):
        start = round(frame * rate * spec.hop_milliseconds / 1000)
        piece = np.zeros(size)
        found = samples[start : start + size]
        piece[: len(found)] = found
        piece *= 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / (size - 1))
        for k in range(points // 2 + 1):
            turns = np.exp(-2j * np.pi * k * np.arange(size) / points)
            energy = abs((piece * turns).sum()) ** 2
            hertz = k * rate / points
            for band, (low, middle, high) in enumerate(
                zip(edges, edges[1:-1], edges[2:], strict=False)
            ):
                rise, fall = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
                power[frame, band] += max(0, min(rise, fall)) * energy
    return np.maximum(-80, 10 * np.log10(np.maximum(power, 1e-30) / power.max()))


@pytest.mark.parametrize("rate", [8000, 11025])
def test_a_spectrogram_is_what_sums_over_samples_give(rate):
    rng = np.random.default_rng(0)
    samples = (tone(700, 0.06, rate) + 0.1 * rng.normal(size=round(0.06 * rate))).astype(np.float32)
    found = spectrogram(samples, rate, SPEC, "a")
    assert found.shape == SPEC.shape == (4, 6, 1) and found.dtype == np.float32
    np.testing.assert_allclose(found[..., 0], by_sums(samples, rate, SPEC), atol=0.01)
    assert found[-1].max() == -80  # silence after the end


@pytest.mark.oracle
def test_bands_are_those_of_transformers():
    from transformers.audio_utils import mel_filter_bank

    spec = SpectrogramSpec()
    _, bands = _window_and_bands(16_000, spec)
    theirs = mel_filter_bank(
        len(bands), spec.bands, 40.0, spec.highest_hertz, 16_000, norm=None, mel_scale="htk"
    )
    np.testing.assert_allclose(bands, theirs, atol=1e-5)


def test_volume_changes_nothing():
    samples = np.random.default_rng(0).normal(size=600).astype(np.float32)
    loud, quiet = (spectrogram(samples * volume, 8000, SPEC, "a") for volume in (0.5, 0.001))
    np.testing.assert_allclose(loud, quiet, atol=1e-3)
    assert loud.max() == 0 and loud.min() >= -80.001


@pytest.mark.parametrize("hertz", [300, 900, 1500])
def test_a_tone_is_loudest_in_its_band_at_any_sample_rate(hertz):
    edges = np.linspace(mel(40), mel(1800), 8)
    band = int(np.abs(edges[1:-1] - mel(hertz)).argmin())
    for rate in (8000, 22_050, 44_100):
        found = spectrogram(tone(hertz, 0.08, rate).astype(np.float32), rate, SPEC, "a")
        assert found[1, :, 0].argmax() == band


def test_every_band_has_a_frequency():
    for rate in (8000, 16_000, 22_050, 44_100, 48_000):
        spec = SpectrogramSpec(highest_hertz=4000.0 if rate == 8000 else 7600.0)
        assert (_window_and_bands(rate, spec)[1].sum(axis=0) > 0).all()


def test_samples_of_each_size(tmp_path):
    path = tmp_path / "a.wav"
    cases = {
        8: (bytes([0, 128, 192]), [-1, 0, 0.5]),
        16: (struct.pack("<3h", -32768, 0, 16384), [-1, 0, 0.5]),
        24: (b"\0\0\x80" + b"\0\0\0" + b"\0\0\x40", [-1, 0, 0.5]),
        32: (struct.pack("<3i", -(2**31), 0, 2**30), [-1, 0, 0.5]),
    }
    for bits, (content, expected) in cases.items():
        path.write_bytes(wav(content, bits=bits))
        samples, rate = read_wav(path, "a")
        assert samples.tolist() == expected and rate == 8000
    path.write_bytes(wav(struct.pack("<4h", 16384, -16384, 16384, 0), channels=2))
    assert read_wav(path, "a")[0].tolist() == [0, 0.25]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "a.wav is no WAV file that can be read (it ends too early); convert it to PCM"),
        (b"ID3 not a wave file at all", "file does not start with RIFF id"),
        (wav(bytes(8), bits=32, kind=3), "unknown format: 3"),
        (wav(b""), "a.wav has no sound: 0 samples"),
        (wav(bytes(8), says=20), "a.wav is cut off: it has 8 bytes of sound, and its header says"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(content, said, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(BadRecordError) as caught:
        read_wav(path, "a.wav")
    assert said in str(caught.value) and str(caught.value).startswith("a.wav ")


def test_silence_and_low_sample_rates_are_refused(tmp_path):
    with pytest.raises(BadRecordError, match=r"a.wav is silent: all samples of its first 0.08 s"):
        spectrogram(np.append(np.full(640, 0.25), 1), 8000, SPEC, "a.wav")
    with pytest.raises(BadRecordError, match=r"set data\.options.highest_hertz to at most 1000"):
        spectrogram(tone(100, rate=2000), 2000, SPEC, "a.wav")


def test_written_files_are_read_back(tmp_path):
    samples = tone(440)
    found, rate = read_wav(write_wav(tmp_path / "a.wav", samples), "a")
    np.testing.assert_allclose(found, samples, atol=1e-4)
    assert rate == 8000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(seconds=0.001), "data.options.seconds=0.001 is shorter than one frame"),
        (dict(highest_hertz=40.0), "data.options.highest_hertz=40 must be above 40"),
        (dict(bands=0), "bands=0 must be at least 1"),
    ],
)
def test_bad_options_are_refused(options, said):
    assert said in build(SpectrogramSpec, options, "data.options")[1][0]
