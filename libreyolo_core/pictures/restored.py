"""Degraded, restored and clean versions of photos side by side, pixel for pixel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from libreyolo_core.pictures.grid import resize, sheet, write
from libreyolo_core.pictures.palette import INK, RIGHT, WRONG, Colour

ROOM = (360, 480)
"""Height and width of a tile. Larger photos are cut, not shrunk: shrinking would hide noise and blur."""


def middle(image: np.ndarray) -> np.ndarray:
    """The middle of an image [H, W, 3], at most ``ROOM``; a copy."""
    h, w = (min(side, most) for side, most in zip(image.shape[:2], ROOM, strict=True))
    top, left = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
    return image[top : top + h, left : left + w].copy()


def restored_pairs(
    shown: Sequence[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray], tuple[float, float, float, float]]],
    path: Path,
) -> Path | None:
    """One row per photo: degraded, restored, clean.

    Args:
        shown: file name, the middles of the three uint8 RGB images, and PSNR and SSIM of the whole restored and of the
            whole degraded image.

    Returns:
        ``path``, or ``None`` without a photo.
    """
    tiles: list[np.ndarray] = []
    captions: list[tuple[str, Colour]] = []
    for name, images, (psnr, ssim, psnr_input, ssim_input) in shown:
        h, w = images[0].shape[:2]
        factor = max(1, min(ROOM[0] // h, ROOM[1] // w, 4))
        tiles += [resize(image, (h * factor, w * factor)) for image in images]
        gain = psnr - psnr_input
        captions += [
            (f"input {psnr_input:.2f} dB, SSIM {ssim_input:.3f}", INK),
            (f"restored {psnr:.2f} dB ({gain:+.2f}), SSIM {ssim:.3f}", RIGHT if gain > 0 else WRONG),
            (f"clean: {name}", INK),
        ]
    if not tiles:
        return None
    heading = "Middle of each photo, pixel for pixel; PSNR and SSIM of the whole"
    return write(sheet(tiles, 3, captions=captions, heading=heading), path)
