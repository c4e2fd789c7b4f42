"""An image file becomes an array, of the form that all images of the data set have."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from input_pipeline.source import BadRecordError
from schema import ConfigError

File = Path | bytes  # where an image is, or what is there

# Pillow goes by the content of a file, whatever its name, and some of its formats are risky to
# open: it hands EPS to Ghostscript, which runs the program in the file. Only these are decoded.
FORMATS = ("PNG", "JPEG")


@dataclasses.dataclass(frozen=True)
class ImageForm:
    mode: Literal["L", "RGB"]  # Pillow's names for grey and colour
    size: int  # of both sides
    resize: bool  # whether an image of another size is made to fit, or refused


def form_of(files: Iterable[File], image_size: int, mode: str | None = None) -> ImageForm:
    """What is not given is as in the first image that can be read."""
    first_fault = None
    for file in files:
        try:
            image = _opened(file)
        except BadRecordError as fault:
            first_fault = first_fault or fault
            continue
        mode = mode or ("L" if image.mode in ("L", "1") else "RGB")
        if image_size:
            return ImageForm(mode, image_size, resize=True)
        if image.width != image.height:
            raise ConfigError(
                f"{_name(file)} has {image.width}x{image.height} pixels, which is no square; "
                "set data.image_size to resize and crop all images to one"
            )
        return ImageForm(mode, image.width, resize=False)
    raise ConfigError(f"not one image can be read; the first: {first_fault}")


def read(file: File, form: ImageForm) -> np.ndarray:
    """uint8 [H, W, C]. Transparency is dropped."""
    image = _opened(file)
    if not form.resize and image.size != (form.size, form.size):
        raise BadRecordError(
            f"{_name(file)} has {image.width}x{image.height} pixels, unlike the first image's "
            f"{form.size}x{form.size}; set data.image_size={form.size} to resize and crop all"
        )
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent entries
    return squared(image.convert(form.mode), form.size)


def squared(image: Image.Image, size: int) -> np.ndarray:
    """uint8 [H, W, C]: the shorter side resized to `size`, the middle cut out."""
    pixels = np.asarray(ImageOps.fit(image, (size, size)))
    return pixels.reshape(size, size, -1)


def _name(file: File) -> str:
    return "its image" if isinstance(file, bytes) else str(file)


def _opened(file: File) -> Image.Image:
    try:
        stream = io.BytesIO(file) if isinstance(file, bytes) else file
        with Image.open(stream, formats=FORMATS) as image:
            image.load()
    except UnidentifiedImageError:
        raise BadRecordError(f"{_name(file)} is not a {' or '.join(FORMATS)} image") from None
    except Exception as error:  # whatever the decoder of a format may raise
        raise BadRecordError(f"{_name(file)} cannot be decoded: {error}") from error
    if image.mode.startswith(("I", "F")):
        raise BadRecordError(
            f"{_name(file)} has more than 8 bits in a pixel's channel (mode {image.mode}); "
            "save it with 8"
        )
    return image
