"""Colours of numbers, for pages and figures.

A ramp's lightness changes evenly from end to end in Oklab, a colour space in which equal distances
look equal. So the order of values can be read without seeing hues, and in grey print. Low values
are close to the background.
"""

import numpy as np

SIZE = 256
# Points of a ramp at equal distances: lightness, chroma, hue in degrees.
POINTS = {
    "light": [
        (0.975, 0.018, 95),
        (0.794, 0.1, 165),
        (0.613, 0.105, 215),
        (0.431, 0.12, 265),
        (0.25, 0.11, 290),
    ],
    "dark": [
        (0.2, 0.025, 270),
        (0.388, 0.1, 275),
        (0.575, 0.11, 225),
        (0.763, 0.12, 170),
        (0.95, 0.12, 105),
    ],
    # For signed values: zero in the middle, and lightness even on both sides of it.
    "light_signed": [
        (0.42, 0.15, 262),
        (0.698, 0.1, 245),
        (0.975, 0.004, 90),
        (0.698, 0.13, 60),
        (0.42, 0.11, 45),
    ],
    "dark_signed": [
        (0.82, 0.1, 240),
        (0.52, 0.12, 250),
        (0.22, 0.01, 270),
        (0.52, 0.12, 55),
        (0.82, 0.13, 75),
    ],
}


def oklab(name: str) -> np.ndarray:
    """The colours of a ramp in Oklab, (SIZE, 3): lightness, green–red, blue–yellow."""
    lightness, chroma, hue = np.array(POINTS[name], np.float64).T
    points = [lightness, chroma * np.cos(np.deg2rad(hue)), chroma * np.sin(np.deg2rad(hue))]
    places = np.linspace(0, len(lightness) - 1, SIZE)
    return np.stack([np.interp(places, np.arange(len(lightness)), axis) for axis in points], -1)


def rgb(name: str) -> np.ndarray:
    """The colours of a ramp in sRGB, (SIZE, 3), from 0 to 1."""
    lightness, a, b = oklab(name).T
    cones = np.stack(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    to_linear = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
    linear = np.clip(np.array(to_linear) @ cones**3, 0, 1).T
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def hexadecimal(name: str) -> str:
    """The colours of a ramp as one string, six digits each."""
    return np.rint(255 * rgb(name)).astype(np.uint8).tobytes().hex()
