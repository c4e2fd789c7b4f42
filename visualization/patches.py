"""The patches that a model reads of an image, a sound or a series: their names and a picture."""

import io
import itertools
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from checkpointing.loaded_run import LoadedRun
from input_pipeline.rows import Fields
from input_pipeline.sources.spectrogram import RANGE_DECIBEL, band_hertz

# Pixels of the picture of a series.
SERIES_HEIGHT, MARGIN, LINE = 240, 12, 3
FINER = 4  # lines are drawn this much larger, then made smooth
WIDEST_STEP, SERIES_WIDTH = 8, 1600


def patch_names(run: LoadedRun) -> tuple[str, ...]:
    """A name for each patch, in the model's order.

    Of an image row and column, of a sound the middle of the patch in time and pitch, of a series
    the steps of the window, from 0.
    """
    config, data = run.model_config, run.experiment.data
    size, counts = config.patch_size, config.patches_per_axis
    if data.example_kind == "sounds":
        times, pitches = _sound_names(run)
        return tuple(f"{time}·{pitch}" for time, pitch in itertools.product(times, pitches))
    if len(counts) == 1:
        starts = range(0, counts[0] * size, size)
        return tuple(f"{first}–{first + size - 1}" if size > 1 else f"{first}" for first in starts)
    return tuple(f"{row},{column}" for row, column in np.ndindex(*counts))


def _sound_names(run: LoadedRun) -> tuple[list[str], list[str]]:
    """The times and the pitches of the middles of patches, without spaces, which pages mark."""
    size, spec = run.model_config.patch_size, run.experiment.data.source_options
    frames, bands = run.model_config.patches_per_axis
    seconds = size * spec.hop_milliseconds / 1000
    digits = 2 if seconds >= 0.02 else 3
    times = [f"{(place + 0.5) * seconds:.{digits}f}s" for place in range(frames)]
    pitches = band_hertz(spec, np.arange(bands) * size + (size - 1) / 2)
    return times, [f"{x / 1000:.1f}kHz" if x >= 1000 else f"{x:.0f}Hz" for x in pitches]


def patch_picture(run: LoadedRun, fields: Fields) -> dict[str, Any]:
    """The fields of a `ModelView` that show where the patches are; {} if there are no patches."""
    config, kind = run.model_config, run.experiment.data.example_kind
    if config.input != "patches":
        return {}
    counts = config.patches_per_axis
    if not config.input_shape:
        found = dict(image_png=_png(_image(run, fields["images"])), patch_grid=counts)
    elif len(counts) == 1:
        picture = _series(fields["signals"])
        found = dict(image_png=_png(picture), patch_grid=(1, *counts), image_name="series")
    else:  # time goes across and pitch upwards, but the model reads frame by frame
        cells = np.arange(np.prod(counts)).reshape(counts[::-1])[::-1].T
        found = dict(
            image_png=_png(_grey(fields["signals"])),
            patch_grid=counts[::-1],
            patch_cells=tuple(cells.ravel().tolist()),
            image_name="spectrogram" if kind == "sounds" else "signal",
        )
    return found | dict(leading_tokens=config.leading_tokens)


def _image(run: LoadedRun, image: np.ndarray) -> np.ndarray:
    """The image as the model sees it, without the normalization."""
    data = run.experiment.data
    if data.image_std:
        image = image * np.asarray(data.image_std, np.float32)
    if data.image_mean:
        image = image + np.asarray(data.image_mean, np.float32)
    pixels = np.clip(np.round(image * 255), 0, 255).astype(np.uint8)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _grey(signal: np.ndarray) -> np.ndarray:
    """A spectrogram (frames, bands, 1) with the loudest value white and the low bands below."""
    shares = 1 + signal[..., 0] / RANGE_DECIBEL  # decibels below the loudest value
    return np.clip(np.round(shares * 255), 0, 255).astype(np.uint8).T[::-1]


def _series(signal: np.ndarray) -> np.ndarray:
    """A series (steps, channels) as lines; a step is as wide as its share of a patch."""
    steps = len(signal)
    wide = max(1, min(WIDEST_STEP, SERIES_WIDTH // steps))
    size = (steps * wide, SERIES_HEIGHT)
    picture = Image.new("L", (FINER * size[0], FINER * size[1]), 255)
    pen = ImageDraw.Draw(picture)
    lowest, highest = float(signal.min()), float(signal.max())
    shares = (signal - lowest) / max(highest - lowest, 1e-12)
    heights = SERIES_HEIGHT - MARGIN - shares * (SERIES_HEIGHT - 2 * MARGIN)
    across = (np.arange(steps) + 0.5) * wide
    for channel in heights.T:
        points = FINER * np.stack([across, channel], axis=-1)
        pen.line(points.ravel().tolist(), fill=0, width=FINER * LINE, joint="curve")
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS))


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()
