"""Made WAV files."""

import wave

import numpy as np


def tone(hertz, seconds=0.5, rate=8000, volume=0.5):
    return volume * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_wav(path, samples, rate=8000):
    """Writes samples from -1 to 1, (N,) or (N, channels), with 16 bits."""
    samples = np.asarray(samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    return path
