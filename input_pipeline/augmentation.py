"""Random augmentation of training images.

Each function takes an image (rows, columns, channels) with values in [0, 1] and a random generator,
and returns an image of the same shape. The generator is the row's own, so the same row of the same
run is always augmented in the same way.
"""

import dataclasses

import numpy as np

from experiment.schema import ConfigError
from input_pipeline.config import DataConfig
from input_pipeline.rows import Row

CROP_ASPECT = 3 / 4  # Inception's crops: aspect ratios from 3/4 to 4/3
ERASED_ASPECT = 0.3  # random erasing (Zhong et al. 2017): aspect ratios from 0.3 to 1/0.3
ERASED_SHARES = (0.02, 0.33)  # random erasing: smallest and largest share of the image's area
ATTEMPTS = 10  # tries to draw a rectangle that fits into the image


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Augments a row. The fields are the values of the `data` section's keys of the same names."""

    crop_padding: int
    crop_scale: float
    flip: bool
    random_erasing: float
    mixup: float

    @property
    def needs_other_row(self) -> bool:
        return self.mixup > 0

    def __call__(self, row: Row, rng: np.random.Generator) -> Row:
        changed = {**row, "image": self._image(row["image"], rng)}
        if not self.mixup:
            return changed
        other = {**row["other"], "image": self._image(row["other"]["image"], rng)}
        return mixed(changed, other, self.mixup, rng)

    def _image(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = unit_range(image)
        if self.crop_padding:
            image = padded_crop(image, self.crop_padding, rng)
        if 0 < self.crop_scale < 1:
            image = resized_crop(image, self.crop_scale, rng)
        if self.flip:
            image = flipped(image, rng)
        if self.random_erasing:
            image = erased(image, self.random_erasing, rng)
        return image


def choose_augmentation(data: DataConfig) -> Augmentation | None:
    """The augmentation that the config asks for, or None."""
    keys = [field.name for field in dataclasses.fields(Augmentation)]
    values = {key: getattr(data, key) for key in keys}
    return Augmentation(**values) if any(values.values()) else None


def refuse_image_keys(data: DataConfig, shape: tuple[int, int, int]) -> None:
    """Raises ConfigError if image keys do not suit images of this shape."""
    rows, columns, channels = shape
    if data.image_size not in (0, rows):
        raise ConfigError(
            f"data.image_size={data.image_size} cannot change the images of "
            f"data.source={data.source!r}, which are {rows}x{columns}; set it to 0"
        )
    for key in ("image_mean", "image_std"):
        value = getattr(data, key)
        if len(value) not in (0, 1, channels):
            raise ConfigError(
                f"data.{key}={value} must have one number, or one for each of the {channels} "
                "channels of the data's images"
            )
    if data.crop_padding >= rows:
        raise ConfigError(
            f"data.crop_padding={data.crop_padding} can crop away all of an image of "
            f"{rows} rows; make it smaller"
        )


def unit_range(image: np.ndarray) -> np.ndarray:
    """Converts uint8 images to float32 in [0, 1]; returns float images unchanged."""
    return image.astype(np.float32) / 255 if image.dtype == np.uint8 else image


def padded_crop(image: np.ndarray, padding: int, rng: np.random.Generator) -> np.ndarray:
    """Pads the image with black on all sides and crops a random window of the original size."""
    rows, columns, _ = image.shape
    top, left = rng.integers(0, 2 * padding + 1, 2)
    framed = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    return framed[top : top + rows, left : left + columns]


def resized_crop(image: np.ndarray, smallest: float, rng: np.random.Generator) -> np.ndarray:
    """Crops a random rectangle with at least this share of the area and resizes it."""
    window = _rectangle(image.shape, (smallest, 1), CROP_ASPECT, rng)
    if window is None:
        return image
    rows, columns, _ = image.shape
    return _stretched(_stretched(image[window], rows, axis=0), columns, axis=1)


def flipped(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrors the image left to right with probability 1/2."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def erased(image: np.ndarray, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Replaces a random rectangle by uniform noise, with the given probability."""
    if rng.random() >= probability:
        return image
    window = _rectangle(image.shape, ERASED_SHARES, ERASED_ASPECT, rng)
    if window is None:
        return image
    image = image.copy()  # the array belongs to the source
    image[window] = rng.random(image[window].shape, np.float32)
    return image


def mixed(row: Row, other: Row, alpha: float, rng: np.random.Generator) -> Row:
    """Mixup: a weight drawn from Beta(alpha, alpha) blends two images, and weights their labels."""
    weight = np.float32(rng.beta(alpha, alpha))
    return {
        **row,
        "image": weight * row["image"] + (1 - weight) * other["image"],
        "label": np.array([row["label"], other["label"]]),
        "label_weights": np.array([weight, 1 - weight]),
    }


def _rectangle(
    shape: tuple[int, ...],
    shares: tuple[float, float],
    extreme_aspect: float,
    rng: np.random.Generator,
) -> tuple[slice, slice] | None:
    """A random rectangle: its share of the area is uniform, its aspect ratio log-uniform.

    Returns None if no attempt gives a rectangle that fits.
    """
    rows, columns, _ = shape
    most = abs(np.log(extreme_aspect))
    for _ in range(ATTEMPTS):
        area = rows * columns * rng.uniform(*shares)
        aspect = np.exp(rng.uniform(-most, most))
        height = max(1, round(np.sqrt(area * aspect)))
        width = max(1, round(np.sqrt(area / aspect)))
        if height <= rows and width <= columns:
            top, left = rng.integers(0, [rows - height + 1, columns - width + 1])
            return slice(top, top + height), slice(left, left + width)
    return None


def _stretched(image: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Resizes one axis to `length` by linear interpolation between pixel centres."""
    here = image.shape[axis]
    centres = np.clip((np.arange(length) + 0.5) * here / length - 0.5, 0, here - 1)
    below = np.floor(centres).astype(int)
    above = np.minimum(below + 1, here - 1)
    share = (centres - below).astype(np.float32)
    share = np.expand_dims(share, [other for other in range(image.ndim) if other != axis])
    return np.take(image, below, axis) * (1 - share) + np.take(image, above, axis) * share
