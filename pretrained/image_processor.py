"""preprocessor_config.json: how a vision model's images are resized and normalized."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrained import model_files
from pretrained.architecture import PublishedConfig

FILE = "preprocessor_config.json"
# The values of data.image_resample, indexed by Pillow's and transformers' numbers.
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
BILINEAR = 2  # the default of transformers' ViT
RESIZE_FIRST = "resize images to the model's size beforehand and set do_resize to false there"


def read(directory: Path, image_size: int) -> dict[str, Any]:
    """Keys of our `data` section from the directory's file; {} if there is no such file."""
    path = directory / FILE
    if not path.is_file():
        return {}
    config = PublishedConfig(model_files.read_json(directory, FILE), str(path))
    config.require("do_rescale", True)
    if abs(255 * config.get("rescale_factor", 1 / 255) - 1) > 1e-3:
        config.refuse("rescale_factor", config.get("rescale_factor"), "only 1 / 255 is")
    found = {}
    if config.get("do_resize", True):
        fit, edge = _fit(config, image_size)
        found = dict(image_fit=fit, image_edge=edge, image_resample=_resample(config))
    if config.get("do_normalize", True):
        found |= {key: tuple(config.get(key, [0.5])) for key in ("image_mean", "image_std")}
    return found


def other_size(directory: Path, image_size: int, patch_size: int) -> dict[str, int]:
    """Our `model` keys for images that the file crops to another size than the model's; else {}."""
    if not (directory / FILE).is_file():
        return {}
    config = PublishedConfig(model_files.read_json(directory, FILE), str(directory / FILE))
    key = "crop_size" if config.get("do_center_crop", False) else "size"
    wanted = config.get(key) if config.get("do_resize", True) else None
    size = _edge(wanted) if wanted else 0
    if size in (0, image_size) or (isinstance(wanted, dict) and "shortest_edge" in wanted):
        return {}
    if size % patch_size:
        config.refuse(key, wanted, f"patches of {patch_size} do not divide it")
    return dict(image_size=size, position_image_size=image_size)


def _fit(config: PublishedConfig, image_size: int) -> tuple[str, int]:
    """Our image_fit and image_edge: the size before the centre is cut out; 0 without that."""
    size = config.get("size") or {"height": image_size, "width": image_size}
    crop = config.get("crop_size") if config.get("do_center_crop", False) else None
    square = (image_size, _square(image_size))
    if size in square and crop in (None, *square):
        return "stretch", 0  # there is nothing to crop
    edge = _edge(size)
    if edge >= image_size and crop in square:
        is_shortest = isinstance(size, dict) and "shortest_edge" in size
        return "center_crop" if is_shortest else "stretch", edge if edge > image_size else 0
    shown = f"{size}, cropped to {crop}" if crop else size
    return config.refuse(
        "size", shown, f"only {image_size}x{image_size}, the model's size, is; {RESIZE_FIRST}"
    )


def _edge(size: Any) -> int:
    """The one size that images are resized to, or the shorter side of them; 0: neither is given."""
    sizes = set(size.values()) if isinstance(size, dict) else {size}
    keys = set(size) if isinstance(size, dict) else set()
    if keys not in (set(), {"shortest_edge"}, {"height", "width"}) or len(sizes) != 1:
        return 0
    (edge,) = sizes
    return edge if type(edge) is int else 0


def _resample(config: PublishedConfig) -> str:
    number = config.get("resample", BILINEAR)
    if not 0 <= number < len(RESAMPLE):
        config.refuse(
            "resample", number, f"Pillow numbers its filters from 0 to {len(RESAMPLE) - 1}"
        )
    return RESAMPLE[number]


def _square(size: int) -> dict[str, int]:
    return {"height": size, "width": size}


def write(directory: Path, data: Mapping[str, Any], image_size: int, channels: int) -> str:
    """Writes the file from the keys that `read` returns; returns a warning, or ""."""
    mean, std = data["image_mean"] or (0.0,), data["image_std"] or (1.0,)
    edge = data["image_edge"] or image_size
    size, crop = _square(edge), {}
    if data["image_fit"] != "stretch":
        size = {"shortest_edge": edge}
    if data["image_fit"] != "stretch" or edge > image_size:
        crop = {"do_center_crop": True, "crop_size": _square(image_size)}
    model_files.write_json(
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
        "data.image_fit=crop crops before it resizes, and transformers crops after: the pixels of "
        "images that are not square differ slightly; data.image_fit=center_crop gives the same"
    )
