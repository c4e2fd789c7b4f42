"""Decodes image files. All images of a data set become arrays of the same shape."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from absl import logging
from PIL import Image, ImageOps, UnidentifiedImageError

from experiment.schema import ConfigError
from experiment.untrusted_files import require_regular
from input_pipeline.config import FORMER_FIT, FORMER_UPRIGHT, DataConfig
from input_pipeline.sources.base import BadRecordError

File = Path | bytes  # the path of an image file, or its content

# Only these formats are decoded. Pillow goes by a file's content, not its name, and some formats
# are dangerous: it passes EPS to Ghostscript, which runs the program in the file.
FORMATS = ("PNG", "JPEG")
# A file of some kilobytes may hold a single colour in billions of pixels.
MOST_PIXELS = 2**26


class ImageHeader(NamedTuple):
    """What the start of an image file says, without decoding its pixels."""

    is_grey: bool
    is_transparent: bool


class ImageColours(NamedTuple):
    """How many readable images of a data set are grey or transparent, and the first such images."""

    readable: int = 0
    grey: int = 0
    transparent: int = 0
    first_grey: str = ""
    first_transparent: str = ""

    @property
    def mode(self) -> str | None:
        """Pillow's mode for all images: grey only if no image has colour; None if none is known."""
        if not self.readable:
            return None
        return "L" if self.grey == self.readable else "RGB"

    def warn(self) -> None:
        """Warns if grey images are read as colour, and if transparency is dropped."""
        if self.grey and self.mode == "RGB":
            logging.warning(
                "%d of %d images are grey (such as %s) and are read as colour",
                *(self.grey, self.readable, self.first_grey),
            )
        if self.transparent:
            logging.warning(
                "%d of %d images have transparency (such as %s), which is dropped: pixels keep the "
                "colour stored under it; flatten them onto a background first if the shape is in "
                "the transparency",
                *(self.transparent, self.readable, self.first_transparent),
            )


def count_colours(headers: Iterable[tuple[object, ImageHeader | None]]) -> ImageColours:
    """Counts grey and transparent images. An image is a name and a header, None if unreadable."""
    found = ImageColours()
    for name, header in headers:
        if header is None:
            continue
        found = found._replace(readable=found.readable + 1)
        if header.is_grey:
            first = found.first_grey or str(name)
            found = found._replace(grey=found.grey + 1, first_grey=first)
        if header.is_transparent:
            first = found.first_transparent or str(name)
            found = found._replace(transparent=found.transparent + 1, first_transparent=first)
    return found


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """The colour mode and size of all images of a data set."""

    mode: Literal["L", "RGB"]  # Pillow's names for grey and colour
    size: int  # rows and columns
    resize: bool  # False: images of another size are refused
    # Keys of the data section, such as data.image_fit. The repr omits them, as in the
    # digests of older runs.
    fit: str = dataclasses.field(default=FORMER_FIT, repr=False)
    resample: str = dataclasses.field(default="bicubic", repr=False)
    upright: bool = dataclasses.field(default=FORMER_UPRIGHT, repr=False)
    edge: int = dataclasses.field(default=0, repr=False)  # data.image_edge

    @classmethod
    def resizing(cls, mode: str, size: int, data: DataConfig) -> "ImageSpec":
        """The spec of images that are resized as the config says."""
        fit, resample = data.image_fit, data.image_resample
        return cls(mode, size, True, fit, resample, data.image_upright, data.image_edge)

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """The spec as strings for a digest, with the former class name that old digests contain."""
        part = repr(self).replace("ImageSpec", "ImageForm", 1)
        is_default = (self.fit, self.resample) == (FORMER_FIT, "bicubic")
        parts = (part,) if is_default else (part, self.fit, self.resample)
        parts = (*parts, "upright") if self.upright else parts
        return (*parts, f"edge {self.edge}") if self.edge else parts

    def fitted(self, image: Image.Image) -> np.ndarray:
        """The image resized to the spec's size: uint8 (rows, columns, channels).

        `center_crop` resizes the shorter side and cuts out the centre, as transformers and
        torchvision do. `crop` first cuts out the central square and then resizes it.
        `stretch` resizes both sides. With an edge, images are resized to that, and the centre is
        cut out.
        """
        size, method = self.size, Image.Resampling[self.resample.upper()]
        edge = self.edge or size
        resized = [int(edge * length / min(image.size)) for length in image.size]
        # Resizing all of a very long image would take more memory than its file suggests.
        is_too_long = edge * max(resized) > Image.MAX_IMAGE_PIXELS
        if self.fit == "stretch":
            image = image.resize((edge, edge), method)
        elif self.fit == "crop" or is_too_long:
            image = ImageOps.fit(image, (edge, edge), method)
        else:
            image = image.resize(resized, method)
        left, top = ((length - size) // 2 for length in image.size)
        image = image.crop((left, top, left + size, top + size))
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
            image = _opened(file, upright=data.image_upright)
        except BadRecordError as fault:
            first_fault = first_fault or fault
            continue
        mode = mode or ("L" if _is_grey(image) else "RGB")
        if data.image_size:
            return ImageSpec.resizing(mode, data.image_size, data)
        if image.width != image.height:
            raise ConfigError(
                f"{_name(file)} has {image.width}x{image.height} pixels, which is not square; "
                "set data.image_size to resize all images to a square"
            )
        return ImageSpec(mode, image.width, resize=False, upright=data.image_upright)
    raise ConfigError(f"not one image can be read; the first: {first_fault}")


def read(file: File, spec: ImageSpec) -> np.ndarray:
    """Decodes an image: uint8 (rows, columns, channels), without transparency."""
    image = _opened(file, upright=spec.upright)
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
    return image.mode in ("L", "LA", "1")


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith(("I", "F"))


def _opened(file: File, *, upright: bool) -> Image.Image:
    try:
        stream = io.BytesIO(file) if isinstance(file, bytes) else require_regular(file)
        with Image.open(stream, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadRecordError(
                    f"{_name(file)} has {image.width}x{image.height} pixels, more than "
                    f"{MOST_PIXELS:,}; make it smaller"
                )
            image.load()
            if upright:
                ImageOps.exif_transpose(image, in_place=True)
    except BadRecordError:
        raise
    except ConfigError as error:
        raise BadRecordError(str(error)) from error
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
