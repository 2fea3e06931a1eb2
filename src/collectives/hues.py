"""One hue for each chunk, in figures and in the page's player alike."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LIGHTNESS = 64.35  # of 100, for every hue: no chunk looks more important than another
SATURATION = 0.891  # of the strongest colour that a screen can show at this hue and lightness
FIRST = 0.01  # of the circle: a red

# From the CIE's XYZ to the red, green and blue of a screen (sRGB), and the white that XYZ are measured against.
TO_SCREEN = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
WHITE_U, WHITE_V = 0.19784, 0.46834


def hues(k: int) -> list[tuple[float, float, float]]:
    """One hue for each of k chunks, equally bright: red, green and blue from 0 to 1 (seaborn's palette "husl").

    >>> [tuple(round(255 * x) for x in rgb) for rgb in hues(2)]
    [(247, 113, 137), (54, 173, 164)]
    """
    angle = (np.arange(k) / k + FIRST) % 1 * np.radians(359)
    chroma = SATURATION * _strongest(angle)
    return [(float(r), float(g), float(b)) for r, g, b in _bent(_light(chroma, angle))]


def colours(k: int) -> list[str]:
    """The same hues as a page writes them.

    >>> colours(2)
    ['#f77189', '#36ada4']
    """
    return ["#" + "".join(f"{round(255 * x):02x}" for x in rgb) for rgb in hues(k)]


def _strongest(angle: Floats) -> Floats:
    """The largest chroma that a screen can show at each angle, found by halving."""
    low, high = np.zeros_like(angle), np.full_like(angle, 200.0)
    for _ in range(40):
        middle = (low + high) / 2
        light = _light(middle, angle)
        shown = ((light >= 0) & (light <= 1)).all(axis=-1)
        low, high = np.where(shown, middle, low), np.where(shown, high, middle)
    return low


def _light(chroma: Floats, angle: Floats) -> Floats:
    """Red, green and blue light of colours given as CIELUV's chroma and angle."""
    u = chroma * np.cos(angle) / (13 * LIGHTNESS) + WHITE_U
    v = chroma * np.sin(angle) / (13 * LIGHTNESS) + WHITE_V
    y = ((LIGHTNESS + 16) / 116) ** 3
    xyz = np.stack([9 * y * u / (4 * v), np.full_like(u, y), y * (12 - 3 * u - 20 * v) / (4 * v)], axis=-1)
    light: Floats = xyz @ TO_SCREEN.T
    return light


def _bent(light: Floats) -> Floats:
    """Light as the numbers that a screen is given."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 0) ** (1 / 2.4) - 0.055)
