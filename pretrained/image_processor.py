"""preprocessor_config.json: how an image becomes the numbers that a vision model reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrained import files
from pretrained.architecture import Options

FILE = "preprocessor_config.json"
# The values of data.image_resample, at the numbers that Pillow and transformers give them.
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
BILINEAR = 2  # of transformers' ViT, where the file does not say
BY_HAND = "resize images to the model's size beforehand and set do_resize to false there"


def read(directory: Path, image_size: int) -> dict[str, Any]:
    """Keys of our `data` section; none where the directory has no such file."""
    path = directory / FILE
    if not path.is_file():
        return {}
    options = Options(files.read_json(directory, FILE), str(path))
    options.require("do_rescale", True)
    if abs(255 * options.get("rescale_factor", 1 / 255) - 1) > 1e-3:
        options.refuse("rescale_factor", options.get("rescale_factor"), "only 1 / 255 is")
    found = {}
    if options.get("do_resize", True):
        found = dict(image_fit=_fit(options, image_size), image_resample=_resample(options))
    if options.get("do_normalize", True):
        found |= {key: tuple(options.get(key, [0.5])) for key in ("image_mean", "image_std")}
    return found


def _fit(options: Options, image_size: int) -> str:
    size = options.get("size") or {"height": image_size, "width": image_size}
    crop = options.get("crop_size") if options.get("do_center_crop", False) else None
    square = (image_size, _square(image_size))
    if size in square and crop in (None, *square):
        return "stretch"  # and there is nothing left to crop
    if size == {"shortest_edge": image_size} and crop in square:
        return "center_crop"
    shown = f"{size}, cropped to {crop}" if crop else size
    return options.refuse(
        "size", shown, f"only {image_size}x{image_size}, the model's, is; {BY_HAND}"
    )


def _resample(options: Options) -> str:
    number = options.get("resample", BILINEAR)
    if not 0 <= number < len(RESAMPLE):
        options.refuse("resample", number, f"Pillow's filters are 0 to {len(RESAMPLE) - 1}")
    return RESAMPLE[number]


def _square(size: int) -> dict[str, int]:
    return {"height": size, "width": size}


def write(directory: Path, data: Mapping[str, Any], image_size: int, channels: int) -> str:
    """Writes the file, from the keys that `read` gives; returns what it cannot say, or ""."""
    mean, std = data["image_mean"] or (0.0,), data["image_std"] or (1.0,)
    size, crop = _square(image_size), {}
    if data["image_fit"] != "stretch":
        size, crop = {"shortest_edge": image_size}, {"do_center_crop": True, "crop_size": size}
    files.write_json(
        directory / FILE,
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": size,
            **crop,
            "resample": RESAMPLE.index(data["image_resample"]),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(mean) * (channels // len(mean)),
            "image_std": list(std) * (channels // len(std)),
        },
    )
    if data["image_fit"] != "crop":
        return ""
    return (
        "data.image_fit=crop crops before it resizes, transformers after: the pixels of images "
        "that are not square differ slightly; data.image_fit=center_crop gives the same"
    )
