"""An image file becomes an array, of the form that all images of the data set have."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from experiment.schema import ConfigError
from input_pipeline.config import FORMER_FIT, DataConfig
from input_pipeline.sources.base import BadRecordError

File = Path | bytes  # where an image is, or what is there

# Pillow goes by the content of a file, whatever its name, and some of its formats are risky to
# open: it hands EPS to Ghostscript, which runs the program in the file. Only these are decoded.
FORMATS = ("PNG", "JPEG")


@dataclasses.dataclass(frozen=True)
class ImageForm:
    mode: Literal["L", "RGB"]  # Pillow's names for grey and colour
    size: int  # of both sides
    resize: bool  # whether an image of another size is made to fit, or refused
    # How it is made to fit: data.image_fit and data.image_resample. The digests of older runs are
    # of a repr without them.
    fit: str = dataclasses.field(default=FORMER_FIT, repr=False)
    resample: str = dataclasses.field(default="bicubic", repr=False)

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """What a data set's digest needs of the form."""
        is_default = (self.fit, self.resample) == (FORMER_FIT, "bicubic")
        return (repr(self),) if is_default else (repr(self), self.fit, self.resample)

    def fitted(self, image: Image.Image) -> np.ndarray:
        """uint8 [H, W, C]: the image resized to the size of this form.

        `center_crop` resizes the shorter side and cuts out the centre, as transformers and
        torchvision do. `crop` cuts out the centre, of a fractional width, and resizes that.
        `stretch` resizes both sides.
        """
        size, method = self.size, Image.Resampling[self.resample.upper()]
        resized = [int(size * side / min(image.size)) for side in image.size]
        # Resizing all of a very long image would take more memory than its file suggests.
        is_too_long = size * max(resized) > Image.MAX_IMAGE_PIXELS
        if self.fit == "stretch":
            image = image.resize((size, size), method)
        elif self.fit == "crop" or is_too_long:
            image = ImageOps.fit(image, (size, size), method)
        else:
            left, top = ((side - size) // 2 for side in resized)
            image = image.resize(resized, method).crop((left, top, left + size, top + size))
        return np.asarray(image).reshape(size, size, -1)


def form_of(files: Iterable[File], data: DataConfig, mode: str | None = None) -> ImageForm:
    """What is not given is as in the first image that can be read."""
    first_fault = None
    for file in files:
        try:
            image = _opened(file)
        except BadRecordError as fault:
            first_fault = first_fault or fault
            continue
        mode = mode or ("L" if image.mode in ("L", "1") else "RGB")
        if data.image_size:
            return ImageForm(mode, data.image_size, True, data.image_fit, data.image_resample)
        if image.width != image.height:
            raise ConfigError(
                f"{_name(file)} has {image.width}x{image.height} pixels, which is no square; "
                "set data.image_size to resize all images to one"
            )
        return ImageForm(mode, image.width, resize=False)
    raise ConfigError(f"not one image can be read; the first: {first_fault}")


def read(file: File, form: ImageForm) -> np.ndarray:
    """uint8 [H, W, C]. Transparency is dropped."""
    image = _opened(file)
    if not form.resize and image.size != (form.size, form.size):
        raise BadRecordError(
            f"{_name(file)} has {image.width}x{image.height} pixels, unlike the first image's "
            f"{form.size}x{form.size}; set data.image_size={form.size} to resize all"
        )
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent entries
    return form.fitted(image.convert(form.mode))


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
