"""Ramps that a colour-blind person can read: lightness alone gives the order of values."""

import numpy as np
import pytest

from visualization import colour_ramps


def luminance(name: str) -> np.ndarray:
    """Relative luminance as in WCAG, from the sRGB values that a screen gets."""
    values = np.frombuffer(bytes.fromhex(colour_ramps.hexadecimal(name)), np.uint8) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return linear.reshape(-1, 3) @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(("name", "direction"), [("light", -1), ("dark", 1)])
def test_lightness_changes_evenly(name, direction):
    steps = direction * np.diff(colour_ramps.oklab(name)[:, 0])
    assert steps.min() > 0
    assert steps.max() / steps.min() < 1.02
    assert np.all(direction * np.diff(luminance(name)[::4]) > 0)


@pytest.mark.parametrize(("name", "direction"), [("light_signed", -1), ("dark_signed", 1)])
def test_signed_ramps_have_zero_in_the_middle(name, direction):
    lightness = direction * colour_ramps.oklab(name)[:, 0]
    assert np.all(np.diff(lightness[:128]) < 0)
    assert np.all(np.diff(lightness[128:]) > 0)
    ends = np.frombuffer(bytes.fromhex(colour_ramps.hexadecimal(name)), np.uint8).reshape(-1, 3)
    # Blue against orange, which differ for every common kind of colour blindness.
    assert ends[0, 2] > ends[0, 0]
    assert ends[-1, 0] > ends[-1, 2]


@pytest.mark.parametrize("name", colour_ramps.POINTS)
def test_neighbouring_colours_look_equally_far_apart(name):
    distances = np.linalg.norm(np.diff(colour_ramps.oklab(name), axis=0), axis=-1)
    if "signed" in name:
        distances = np.delete(distances, 127)  # the turning point lies between two colours
    assert distances.max() / distances.min() < 2


@pytest.mark.parametrize(("name", "expected"), [("light", 0.85), ("dark", 0.02)])
def test_small_values_are_close_to_the_background(name, expected):
    assert (luminance(name)[0] > expected) == (name == "light")
    assert (luminance(name)[-1] < 0.05) == (name == "light")
