"""``confusion_matrix.png``: every cell written out up to a hundred classes, a heat map beyond.

Drawn pixel by pixel and not as a chart, so that a number in a cell has a known size whatever the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo_core.pictures.grid import write
from libreyolo_core.pictures.palette import INK, PAPER, text_on
from libreyolo_core.pictures.text import font, shorten, width

WRITTEN = 100
"""Up to this many classes every cell holds its numbers."""
DEEP = (0, 70, 160)
"""The colour of a share of 1."""
LINE = (222, 226, 230)
GAP = 12


def confusion_picture(
    counts: np.ndarray, names: Sequence[str], path: Path, *, note: str = "", background: bool = False
) -> Path:
    """Draw counts int [K, K], rows predicted, columns true, with the share of each column's sum and the count.

    Args:
        names: the K row and column names.
        note: how the counts were made, for the title.
        background: the last row and column are the background. Its column has no true class to take a share of, so
            it shows counts alone.
    """
    k = len(names)
    total = counts.sum(axis=0, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    if background:
        share[:, -1] = np.nan
    if k > WRITTEN + 1:
        matrix = _heat(share, max(1, 1000 // k))
        what = "Share of the true class, white for none to dark for all"
        rows = columns = [f"class {c}" if c % 100 == 0 else "" for c in range(k)]
    else:
        matrix = _cells(counts, share)
        what, rows, columns = "Share of the true class, and count", list(names), list(names)
    what += "; background column: false detections" if background else ""
    return write(np.asarray(_framed(matrix, rows, columns, what, note)), path)


def cell_px(k: int) -> tuple[int, int, int]:
    """Side of a cell, font size of its numbers and of the names, in pixels, for ``k`` rows."""
    return (120, 20, 18) if k <= 4 else (64, 14, 14) if k <= 20 else (40, 10, 12)


def compact(count: int) -> str:
    """A count in at most six characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 100 * size:
            return f"{count // size}{unit}"
    return f"{count:,}"


def _shade(share: np.ndarray) -> np.ndarray:
    """Colours uint8 [..., 3] of shares 0 to 1; NaN stays white."""
    weight = np.nan_to_num(share)[..., None] ** 0.7  # small shares should be seen
    return np.round(255 + (np.array(DEEP) - 255) * weight).astype(np.uint8)


def _heat(share: np.ndarray, cell: int) -> Image.Image:
    return Image.fromarray(np.kron(_shade(share), np.ones((cell, cell, 1), dtype=np.uint8)))


def _cells(counts: np.ndarray, share: np.ndarray) -> Image.Image:
    k = len(counts)
    cell, size, _ = cell_px(k)
    picture = _heat(share, cell)
    draw = ImageDraw.Draw(picture)
    for i in range(1, k):
        draw.line((i * cell, 0, i * cell, k * cell), fill=LINE)
        draw.line((0, i * cell, k * cell, i * cell), fill=LINE)
    face, shades = font(size), _shade(share)
    for row, column in zip(*np.nonzero(counts), strict=True):
        value, text = share[row, column], compact(int(counts[row, column]))
        middle = ((column + 0.5) * cell, (row + 0.5) * cell)
        ink = text_on(tuple(shades[row, column].tolist()))
        if np.isnan(value):
            draw.text(middle, text, fill=ink, font=face, anchor="mm")
            continue
        step = size * 0.62
        draw.text((middle[0], middle[1] - step), f"{value:.2f}", fill=ink, font=face, anchor="mm")
        draw.text((middle[0], middle[1] + step), text, fill=ink, font=face, anchor="mm")
    return picture


def _framed(matrix: Image.Image, rows: Sequence[str], columns: Sequence[str], what: str, note: str) -> Image.Image:
    """The matrix with names at its left and below, axis names, and a title of two lines."""
    k = len(rows)
    step = matrix.height / k
    size = cell_px(k)[2]
    title = max(14, min(28, matrix.width // 60))
    row_names, column_names = [[shorten(n, size, 180) for n in part] for part in (rows, columns)]
    left = GAP + title + GAP + max(width(n, size) for n in row_names) + 6
    level = all(width(n, size) <= step - 4 for n in column_names)  # short names need no turning
    under = 6 + (size if level else max(width(n, size) for n in column_names))
    top = GAP + 2 * round(title * 1.35) + GAP // 2
    wide = left + matrix.width + GAP
    wide = max(wide, *(width(text, title) + 2 * GAP for text in (what, note)))
    canvas = Image.new("RGB", (wide, top + matrix.height + under + GAP + title + GAP), PAPER)
    draw = ImageDraw.Draw(canvas)
    for i, text in enumerate((what, note)):
        draw.text((GAP, GAP + title * 1.35 * (i + 0.5)), text, fill=INK, font=font(title, text), anchor="lm")
    canvas.paste(matrix, (left, top))
    draw.rectangle((left - 1, top - 1, left + matrix.width, top + matrix.height), outline=INK)
    for i, name in enumerate(row_names):
        draw.text((left - 6, top + (i + 0.5) * step), name, fill=INK, font=font(size, name), anchor="rm")
    for i, name in enumerate(column_names):
        x, y = left + (i + 0.5) * step, top + matrix.height + 6
        if level:
            draw.text((x, y), name, fill=INK, font=font(size, name), anchor="ma")
        elif name:
            turned = _turned(name, size)
            canvas.paste(turned, (round(x - turned.width / 2), y))
    middle = (left + matrix.width / 2, canvas.height - GAP - title / 2)
    draw.text(middle, "true", fill=INK, font=font(title), anchor="mm")
    predicted = _turned("predicted", title)
    canvas.paste(predicted, (GAP // 2, round(top + (matrix.height - predicted.height) / 2)))
    return canvas


def _turned(text: str, size: int) -> Image.Image:
    """A line of text that reads upwards."""
    line = Image.new("RGB", (max(1, width(text, size)), round(size * 1.3)), PAPER)
    ImageDraw.Draw(line).text((0, line.height / 2), text, fill=INK, font=font(size, text), anchor="lm")
    return line.transpose(Image.Transpose.ROTATE_90)
