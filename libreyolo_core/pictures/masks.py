"""Classes of pixels as colours: on a photo, beside the truth, and with a legend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from libreyolo_core.pictures.grid import inside, resize, sheet, write
from libreyolo_core.pictures.pairs import class_legend
from libreyolo_core.pictures.palette import INK, Colour, class_colour
from libreyolo_core.pictures.text import font, shorten, width
from libreyolo_core.targets import IGNORED

if TYPE_CHECKING:
    from libreyolo_core.tasks.semantic_eval import Shown

SHARE = 0.55
"""How much of an overlay is the class's colour, the rest is the photo."""
HATCH_PX = 5
ROOM = (320, 320)


def blend_mask(image: np.ndarray, mask: np.ndarray, *, share: float = SHARE, hatched: bool = False) -> np.ndarray:
    """A copy of ``image`` (uint8 [H, W, 3]) coloured by the class of each pixel, int [H, W].

    Args:
        share: of the class's colour.
        hatched: cross out ignored pixels (255) in grey; else they stay as they are.
    """
    classes = mask.astype(np.uint8)
    paint = _table()[classes]  # [H, W, 3]
    out = (image * np.float32(1 - share) + paint * np.float32(share) + np.float32(0.5)).astype(np.uint8)
    ignored = classes == IGNORED
    out[ignored] = image[ignored]
    if hatched and ignored.any():
        y, x = np.ogrid[: mask.shape[0], : mask.shape[1]]
        stripe = np.where((x + y) // HATCH_PX % 2, 200, 90).astype(np.uint8)[..., None]
        out[ignored] = (image // 4 + stripe // 4 * 3)[ignored]
    return out


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    return np.array([class_colour(c) for c in range(256)], dtype=np.uint8)


def legend_panel(image: np.ndarray, entries: Sequence[tuple[Colour, str]], size: int) -> np.ndarray:
    """A copy of ``image`` with (colour, text) entries on a light panel in its top-left corner, as many as half of the
    picture's height holds; what is left out is counted in the last line.

    Args:
        size: font size in pixels.
    """
    h, w = image.shape[:2]
    step, pad = round(size * 1.45), max(3, size // 3)
    rows = min(len(entries), (h // 2 - 2 * pad) // step)
    if rows < 1 or w < 6 * size:
        return image.copy()
    left_out = len(entries) - rows
    lines: list[tuple[Colour | None, str]] = list(entries[:rows])
    if left_out and rows > 1:
        lines[-1] = (None, f"and {left_out + 1} more")
    room = w - 2 * pad - step
    texts = [shorten(text, size, room) for _, text in lines]
    panel = (2 * pad + step + max(width(t, size) for t in texts), 2 * pad + step * len(lines))
    canvas = Image.fromarray(np.ascontiguousarray(image))
    under = canvas.crop((0, 0, *panel))
    canvas.paste(Image.blend(under, Image.new("RGB", panel, (255, 255, 255)), 0.8), (0, 0))
    draw = ImageDraw.Draw(canvas)
    for i, ((colour, _), text) in enumerate(zip(lines, texts, strict=True)):
        y = pad + step * i
        if colour is not None:
            draw.rectangle((pad, y + (step - size) // 2, pad + size - 1, y + (step + size) // 2 - 1), fill=colour)
        draw.text((pad + step, y + step / 2), text, fill=INK, font=font(size, text), anchor="lm")
    return np.asarray(canvas).copy()


def present(masks: Sequence[np.ndarray]) -> set[int]:
    """The classes that occur, without the ignored."""
    return {int(c) for mask in masks for c in np.unique(mask)} - {IGNORED}


def mask_pairs(shown: Sequence[tuple[str, Shown]], names: dict[int, str], path: Path) -> Path | None:
    """Photos three times: as they are, with the true classes, with the predicted ones. ``None`` without a photo."""
    tiles: list[np.ndarray] = []
    captions: list[str] = []
    for name, item in shown:
        h, w, _ = inside(item.image.shape[0], item.image.shape[1], ROOM)
        photo, truth, found = resize(item.image, (h, w)), _shrunk(item.truth, (h, w)), _shrunk(item.predicted, (h, w))
        known = item.truth != IGNORED
        right = float((item.truth == item.predicted)[known].mean()) if known.any() else 0.0
        tiles += [photo, blend_mask(photo, truth, hatched=True), blend_mask(photo, found)]
        captions += [name, "truth", f"prediction: {right:.0%} of pixels right"]
    if not tiles:
        return None
    masks = [m for _, item in shown for m in (item.truth, item.predicted)]
    picture = sheet(
        tiles,
        min(len(tiles), 6),
        captions=captions,
        heading="Photo, truth, prediction; pixels that are hatched in grey have no known class",
        legend=class_legend(present(masks), names),
    )
    return write(picture, path)


def _shrunk(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map of classes at (height, width), nearest neighbour."""
    rows = (np.arange(size[0]) + 0.5) * mask.shape[0] / size[0]
    columns = (np.arange(size[1]) + 0.5) * mask.shape[1] / size[1]
    return mask[rows.astype(np.int64)[:, None], columns.astype(np.int64)[None]]
