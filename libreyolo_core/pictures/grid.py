"""Sheets of photos: tiles with captions in a grid, a heading above and a legend below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw

from libreyolo_core.pictures.palette import INK, PAPER, Colour
from libreyolo_core.pictures.text import font, shorten, shorten_middle, width

GAP = 8
CAPTION_PX = 15
HEADING_PX = 20


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``image`` at (height, width); area averaging when shrinking, whole pixels when growing."""
    h, w = size
    grows = h > image.shape[0] or w > image.shape[1]
    return cv2.resize(image, (w, h), interpolation=cv2.INTER_NEAREST if grows else cv2.INTER_AREA)


def inside(height: int, wide: int, room: tuple[int, int], most: float = 4.0) -> tuple[int, int, float]:
    """Size (height, width) that a photo has inside ``room`` with its aspect kept, and the factor, at most ``most``."""
    factor = min(room[0] / height, room[1] / wide, most)
    return max(1, round(height * factor)), max(1, round(wide * factor)), factor


def sheet(
    tiles: Sequence[np.ndarray],
    columns: int,
    *,
    captions: Sequence[str | tuple[str, Colour]] = (),
    heading: str = "",
    legend: Sequence[tuple[Colour, str]] = (),
) -> np.ndarray:
    """One picture, uint8 [H, W, 3].

    Args:
        tiles: uint8 RGB, centred in cells as wide as the widest and as high as the highest of their row.
        captions: a line under each tile, with a colour where it should stand out.
        heading: a line above.
        legend: (colour, text) entries, wrapped over as many lines as they need.
    """
    cell_w = max(t.shape[1] for t in tiles)
    under = CAPTION_PX + 6 if captions else 0
    columns = min(columns, len(tiles))
    heights = [max(t.shape[0] for t in tiles[i : i + columns]) for i in range(0, len(tiles), columns)]
    full_w = GAP + columns * (cell_w + GAP)
    top = GAP + (HEADING_PX + GAP if heading else 0)
    lines = _wrap(legend, full_w - 2 * GAP)
    bottom = top + sum(heights) + len(heights) * (under + GAP)
    full_h = bottom + len(lines) * (CAPTION_PX + 8) + (GAP // 2 if lines else 0)
    canvas = Image.new("RGB", (full_w, full_h), PAPER)
    draw = ImageDraw.Draw(canvas)
    if heading:
        text = shorten(heading, HEADING_PX, full_w - 2 * GAP)
        draw.text((GAP, GAP + HEADING_PX / 2), text, fill=INK, font=font(HEADING_PX, text), anchor="lm")
    for i, tile in enumerate(tiles):
        x = GAP + (i % columns) * (cell_w + GAP)
        row = i // columns
        y, cell_h = top + sum(heights[:row]) + row * (under + GAP), heights[row]
        at = (x + (cell_w - tile.shape[1]) // 2, y + (cell_h - tile.shape[0]) // 2)
        canvas.paste(Image.fromarray(np.ascontiguousarray(tile)), at)
        if captions:
            caption = captions[i]
            text, colour = caption if isinstance(caption, tuple) else (caption, INK)
            text = shorten_middle(text, CAPTION_PX, cell_w)
            draw.text((x, y + cell_h + under / 2), text, fill=colour, font=font(CAPTION_PX, text), anchor="lm")
    y = bottom + GAP // 2
    for line in lines:
        x = GAP
        for colour, text in line:
            draw.rectangle((x, y + 2, x + CAPTION_PX - 1, y + CAPTION_PX + 1), fill=colour)
            face = font(CAPTION_PX, text)
            draw.text((x + CAPTION_PX + 6, y + 2 + CAPTION_PX / 2), text, fill=INK, font=face, anchor="lm")
            x += _entry_width(text)
        y += CAPTION_PX + 8
    return np.asarray(canvas).copy()


def _entry_width(text: str) -> int:
    return CAPTION_PX + 6 + width(text, CAPTION_PX) + 18


def _wrap(legend: Sequence[tuple[Colour, str]], room: int) -> list[list[tuple[Colour, str]]]:
    lines: list[list[tuple[Colour, str]]] = []
    used = room + 1
    for colour, text in legend:
        text = shorten(text, CAPTION_PX, room - CAPTION_PX - 24)
        wide = _entry_width(text)
        if used + wide > room:
            lines.append([])
            used = 0
        lines[-1].append((colour, text))
        used += wide
    return lines


def write(image: np.ndarray, path: str | Path, *, best: bool = False) -> Path:
    """Write an RGB picture, or one of grey levels [H, W]; the format follows the suffix. Parent folders are made.

    Args:
        best: the best quality that JPEG has, and WebP without loss.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {}
    if path.suffix.lower() in (".jpg", ".jpeg"):
        options = {"quality": 100 if best else 92, "subsampling": 0}
    elif path.suffix.lower() == ".webp" and best:
        options = {"lossless": True}
    Image.fromarray(np.ascontiguousarray(image)).save(path, **options)
    return path
