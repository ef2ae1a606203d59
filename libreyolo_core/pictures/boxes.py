"""Boxes and points on a photo, with labels that stay on the canvas and apart from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from libreyolo_core.pictures.palette import Colour, text_on
from libreyolo_core.pictures.text import font, shorten, width


def line_px(height: int, wide: int) -> int:
    """Line width that suits a picture of that size."""
    return max(1, round((height * wide) ** 0.5 * 0.0036))


MOST_HIDDEN = 0.1
"""Share of a picture that the labels of points may cover."""


def font_px(height: int, wide: int) -> int:
    """Font size that suits a picture of that size; 7 pixels is the smallest that reads."""
    return int(np.clip(round(6 + (height * wide) ** 0.5 * 0.0125), 7, 64))


def draw_boxes(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[Colour],
    *,
    line: int | None = None,
    size: int | None = None,
) -> np.ndarray:
    """A copy of ``image`` (uint8 [H, W, 3]) with boxes [n, 4] (x1 y1 x2 y2, most important first).

    Args:
        labels: one text per box; "" for none.
        colours: one colour per box, in the channel order of ``image``.
        line, size: line width and font size in pixels; by default chosen from the picture's size.
    """
    h, w = image.shape[:2]
    line = line_px(h, w) if line is None else line
    size = font_px(h, w) if size is None else size
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    # x2 and y2 are the edges of pixels, so the last pixel of a box lies before them
    corners = np.round(np.asarray(boxes, dtype=np.float64).reshape(-1, 4)) - [0, 0, 1, 1]
    # edges at or beyond the border are drawn on the last visible pixel
    corners = np.clip(corners, 0, [w - 1, h - 1, w - 1, h - 1]).astype(int)
    for (x1, y1, x2, y2), colour in reversed(list(zip(corners.tolist(), colours, strict=True))):
        # a line wider than half a small box would fill it
        thin = max(1, min(line, (x2 - x1) // 4, (y2 - y1) // 4))
        draw.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=thin)
    draw_labels(draw, (h, w), corners, labels, colours, size)
    return np.asarray(canvas).copy()


def draw_labels(
    draw: ImageDraw.ImageDraw,
    canvas: tuple[int, int],
    corners: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[Colour],
    size: int,
) -> list[tuple[int, int, int, int]]:
    """Write one label at each box (int [n, 4]), the first with the first choice of place; returns the places taken.

    A label that does not fit the canvas gets a smaller font, down to 7 pixels, then an ellipsis.
    """
    h, w = canvas
    placed: list[tuple[int, int, int, int]] = []
    for box, text, colour in zip(corners.tolist(), labels, colours, strict=True):
        fitted, px = fit(text, size, (h, w))
        if not fitted:
            continue
        pad = max(1, px // 6)
        wide, high = min(width(fitted, px) + 2 * pad, w), min(px + 2 * pad, h)
        x, y = _place(box, wide, high, (h, w), placed)
        placed.append((x, y, x + wide, y + high))
        draw.rectangle((x, y, x + wide - 1, y + high - 1), fill=colour)
        face = font(px, fitted)
        middle = (x + pad, y + high / 2)
        draw.text(middle, fitted, fill=text_on(colour), font=face, anchor="lm")
    return placed


def fit(text: str, size: int, canvas: tuple[int, int]) -> tuple[str, int]:
    """The text and font size with which a label fits a canvas (height, width); ("", size) when none does."""
    h, w = canvas
    for px in range(min(size, h - 2), 6, -1):
        if width(text, px) + 2 * max(1, px // 6) <= w:
            return text, px
    return (shorten(text, 7, w - 2), 7) if h >= 9 and text else ("", size)


def _place(
    box: list[int], wide: int, high: int, canvas: tuple[int, int], placed: list[tuple[int, int, int, int]]
) -> tuple[int, int]:
    """Where a label goes: above the box if that is free, else inside, below or beside it, else where it hides least."""
    h, w = canvas
    x1, y1, x2, y2 = box
    places = [
        (x1, y1 - high),
        (x1, y1),
        (x1, y2 + 1),
        (x2 - wide + 1, y1 - high),
        (x2 - wide + 1, y2 + 1),
        (x1, y2 - high + 1),
        (x2 + 1, y1),
        (x1 - wide, y1),
    ]
    if y1 < high:  # no room above: clamping would lay the label over the box's own edge
        places = [*places[1:3], places[0], *places[3:]]
    places = [(min(max(x, 0), w - wide), min(max(y, 0), h - high)) for x, y in places]
    if not placed:
        return places[0]
    taken = np.array(placed)
    hidden = []
    for x, y in places:
        across = np.minimum(taken[:, 2], x + wide) - np.maximum(taken[:, 0], x)
        down = np.minimum(taken[:, 3], y + high) - np.maximum(taken[:, 1], y)
        hidden.append(int((np.clip(across, 0, None) * np.clip(down, 0, None)).sum()))
    return places[int(np.argmin(hidden))]


def draw_points(
    image: np.ndarray,
    points: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[Colour],
    *,
    radius: int | None = None,
    size: int | None = None,
) -> np.ndarray:
    """A copy of ``image`` with points [n, 2] (x y, most important first) as discs with labels.

    Many points would disappear under their labels: beyond ``MOST_HIDDEN`` of the picture the discs stand alone.

    Args:
        radius, size: of the discs and the letters in pixels; by default chosen from the picture's size.
    """
    h, w = image.shape[:2]
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    radius = max(3, 2 * line_px(h, w)) if radius is None else radius
    at = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    corners = np.concatenate([at - radius, at + radius], axis=1)
    corners = np.clip(np.round(corners), 0, [w - 1, h - 1, w - 1, h - 1]).astype(int)
    px = font_px(h, w) if size is None else size
    if sum(width(text, px) for text in labels) * px <= MOST_HIDDEN * h * w:
        draw_labels(draw, (h, w), corners, labels, colours, px)
    # discs last: a label may lie beside its point, but no point may lie under a label
    for (x1, y1, x2, y2), colour in reversed(list(zip(corners.tolist(), colours, strict=True))):
        draw.ellipse((x1, y1, x2, y2), fill=colour, outline=text_on(colour))
    return np.asarray(canvas).copy()


def draw_rings(image: np.ndarray, points: np.ndarray, colours: Sequence[Colour], *, radius: int) -> np.ndarray:
    """A copy of ``image`` with points [n, 2] (x y) as rings of two pixels on a light ground."""
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    for (x, y), colour in zip(np.round(np.asarray(points).reshape(-1, 2)).tolist(), colours, strict=True):
        outer, inner = (x - radius - 1, y - radius - 1, x + radius + 1, y + radius + 1), radius
        draw.ellipse(outer, outline=(255, 255, 255), width=4)
        draw.ellipse((x - inner, y - inner, x + inner, y + inner), outline=colour, width=2)
    return np.asarray(canvas).copy()


def draw_crosses(image: np.ndarray, points: np.ndarray, colours: Sequence[Colour], *, radius: int) -> np.ndarray:
    """A copy of ``image`` with points [n, 2] (x y) as diagonal crosses on a light ground."""
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    for (x, y), colour in zip(np.round(np.asarray(points).reshape(-1, 2)).tolist(), colours, strict=True):
        for ink, line in (((255, 255, 255), 5), (colour, 2)):
            draw.line((x - radius, y - radius, x + radius, y + radius), fill=ink, width=line)
            draw.line((x - radius, y + radius, x + radius, y - radius), fill=ink, width=line)
    return np.asarray(canvas).copy()


def write_lines(image: np.ndarray, lines: Sequence[str], size: int) -> np.ndarray:
    """A copy of ``image`` with lines of text on a dark panel in its top-left corner, as many as fit."""
    h, w = image.shape[:2]
    canvas = Image.fromarray(np.ascontiguousarray(image))
    draw = ImageDraw.Draw(canvas)
    fitted = [f for f in (fit(text, size, (h, w)) for text in lines) if f[0]]
    if not fitted:
        return np.asarray(canvas).copy()
    px = min(p for _, p in fitted)
    pad, step = max(2, px // 3), round(px * 1.3)
    texts = [shorten(text, px, w - 2 * pad) for text, _ in fitted][: max(1, (h - 2 * pad) // step)]
    panel = (min(w, max(width(t, px) for t in texts) + 2 * pad), min(h, step * len(texts) + 2 * pad))
    draw.rectangle((0, 0, panel[0] - 1, panel[1] - 1), fill=(33, 37, 41))
    for i, text in enumerate(texts):
        draw.text((pad, pad + step * (i + 0.5)), text, fill=(255, 255, 255), font=font(px, text), anchor="lm")
    return np.asarray(canvas).copy()
