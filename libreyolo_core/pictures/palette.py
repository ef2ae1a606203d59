"""One colour per class, the same in every picture."""

from __future__ import annotations

import colorsys
from functools import lru_cache

Colour = tuple[int, int, int]
"""Red, green, blue, 0 to 255."""

INK: Colour = (33, 37, 41)
PAPER: Colour = (255, 255, 255)
RIGHT: Colour = (24, 121, 78)
WRONG: Colour = (201, 42, 42)


@lru_cache(maxsize=4096)
def class_colour(index: int) -> Colour:
    """The colour of a class. Hues step by the golden angle, so neighbours differ; lightness varies every seven."""
    hue = (0.58 + index * 0.618033988749895) % 1.0
    value, saturation = ((0.90, 0.85), (0.70, 0.95), (1.0, 0.60))[index // 7 % 3]
    r, g, b = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(r * 255), round(g * 255), round(b * 255)


def text_on(colour: Colour) -> Colour:
    """Black or white, whichever reads better on ``colour`` (relative luminance, ITU-R BT.709 weights)."""
    linear = [(c / 255) ** 2.2 for c in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.18 else (255, 255, 255)
