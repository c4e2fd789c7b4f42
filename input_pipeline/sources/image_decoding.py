"""Decodes image files. All images of a data set become arrays of the same shape."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from experiment.schema import ConfigError
from input_pipeline.config import FORMER_FIT, DataConfig
from input_pipeline.sources.base import BadRecordError

File = Path | bytes  # the path of an image file, or its content

# Only these formats are decoded. Pillow goes by a file's content, not its name, and some formats
# are dangerous: it passes EPS to Ghostscript, which runs the program in the file.
FORMATS = ("PNG", "JPEG")


class ImageHeader(NamedTuple):
    """What the start of an image file says, without decoding its pixels."""

    is_grey: bool
    is_transparent: bool


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """The colour mode and size of all images of a data set."""

    mode: Literal["L", "RGB"]  # Pillow's names for grey and colour
    size: int  # rows and columns
    resize: bool  # False: images of another size are refused
    # data.image_fit and data.image_resample. The repr omits them, as in the digests of older runs.
    fit: str = dataclasses.field(default=FORMER_FIT, repr=False)
    resample: str = dataclasses.field(default="bicubic", repr=False)

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """The spec as strings for a digest, with the former class name that old digests contain."""
        part = repr(self).replace("ImageSpec", "ImageForm", 1)
        is_default = (self.fit, self.resample) == (FORMER_FIT, "bicubic")
        return (part,) if is_default else (part, self.fit, self.resample)

    def fitted(self, image: Image.Image) -> np.ndarray:
        """The image resized to the spec's size: uint8 (rows, columns, channels).

        `center_crop` resizes the shorter side and cuts out the centre, as transformers and
        torchvision do. `crop` first cuts out the central square and then resizes it.
        `stretch` resizes both sides.
        """
        size, method = self.size, Image.Resampling[self.resample.upper()]
        resized = [int(size * edge / min(image.size)) for edge in image.size]
        # Resizing all of a very long image would take more memory than its file suggests.
        is_too_long = size * max(resized) > Image.MAX_IMAGE_PIXELS
        if self.fit == "stretch":
            image = image.resize((size, size), method)
        elif self.fit == "crop" or is_too_long:
            image = ImageOps.fit(image, (size, size), method)
        else:
            left, top = ((edge - size) // 2 for edge in resized)
            image = image.resize(resized, method).crop((left, top, left + size, top + size))
        return np.asarray(image).reshape(size, size, -1)


def read_header(file: File | BinaryIO) -> ImageHeader | None:
    """The header of an image file, or None if `read` would refuse it for what the header says."""
    try:
        stream = io.BytesIO(file) if isinstance(file, bytes) else file
        with Image.open(stream, formats=FORMATS) as image:
            if _is_deep(image):
                return None
            is_transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
            return ImageHeader(_is_grey(image), is_transparent)
    except Exception:  # decoders raise many types; `read` will name the problem
        return None


def infer_image_spec(files: Iterable[File], data: DataConfig, mode: str | None = None) -> ImageSpec:
    """The spec of a data set. Values that the config leaves open come from the first image.

    mode: Pillow's mode, if known.
    """
    first_fault = None
    for file in files:
        try:
            image = _opened(file)
        except BadRecordError as fault:
            first_fault = first_fault or fault
            continue
        mode = mode or ("L" if _is_grey(image) else "RGB")
        if data.image_size:
            return ImageSpec(mode, data.image_size, True, data.image_fit, data.image_resample)
        if image.width != image.height:
            raise ConfigError(
                f"{_name(file)} has {image.width}x{image.height} pixels, which is not square; "
                "set data.image_size to resize all images to a square"
            )
        return ImageSpec(mode, image.width, resize=False)
    raise ConfigError(f"not one image can be read; the first: {first_fault}")


def read(file: File, spec: ImageSpec) -> np.ndarray:
    """Decodes an image: uint8 (rows, columns, channels), without transparency."""
    image = _opened(file)
    if not spec.resize and image.size != (spec.size, spec.size):
        raise BadRecordError(
            f"{_name(file)} has {image.width}x{image.height} pixels, unlike the first image's "
            f"{spec.size}x{spec.size}; set data.image_size={spec.size} to resize all"
        )
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may have transparent entries
    return spec.fitted(image.convert(spec.mode))


def _name(file: File) -> str:
    return "its image" if isinstance(file, bytes) else str(file)


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("L", "1")


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith(("I", "F"))


def _opened(file: File) -> Image.Image:
    try:
        stream = io.BytesIO(file) if isinstance(file, bytes) else file
        with Image.open(stream, formats=FORMATS) as image:
            image.load()
    except UnidentifiedImageError:
        raise BadRecordError(f"{_name(file)} is not a {' or '.join(FORMATS)} image") from None
    except Exception as error:  # decoders raise many types
        raise BadRecordError(f"{_name(file)} cannot be decoded: {error}") from error
    if _is_deep(image):
        raise BadRecordError(
            f"{_name(file)} has more than 8 bits in a pixel's channel (mode {image.mode}); "
            "save it with 8"
        )
    return image
