"""Affine maps [2, 3] of boxes and pixels. They map edge coordinates: an image's first pixel covers 0 to 1."""

from __future__ import annotations

import math

import cv2
import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.fit import outside
from libreyolo_core.data.scratch import scratch
from libreyolo_core.family import Input


def affine_matrix(spec: augment.Mosaic | augment.Affine, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A random rotation, scale, shear about the origin and a translation as the share of ``size``: float64 [2, 3]."""
    angle = math.radians(rng.uniform(-spec.rotate, spec.rotate))
    scale = rng.uniform(*spec.scale)
    shear_x, shear_y = np.tan(np.radians(rng.uniform(-spec.shear, spec.shear, size=2)))
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    rows = np.array([[cos, sin, 0.0], [-sin, cos, 0.0]])
    sheared = np.array([rows[0] + shear_y * rows[1], rows[1] + shear_x * rows[0]])
    sheared[:, 2] = rng.uniform(-spec.translate, spec.translate, size=2) * (size[1], size[0])
    return sheared


def compose(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The affine map [2, 3] that applies ``inner`` first."""
    out = outer[:, :2] @ inner
    out[:, 2] += outer[:, 2]
    return out


def warp_boxes(boxes: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Bounds float32 [n, 4] of the corners of boxes under an affine map [2, 3]."""
    out = np.empty((len(boxes), 4), dtype=np.float32)
    for axis, (a, b, c) in enumerate(matrix.tolist()):
        # the smallest and largest of four corners follow from the signs of the factors
        x = boxes[:, 0::2] if a >= 0 else boxes[:, 2::-2]
        y = boxes[:, 1::2] if b >= 0 else boxes[:, 3::-2]
        out[:, axis::2] = a * x + b * y + c
    return out


def warp_bounds(matrix: np.ndarray, x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float]:
    """As ``warp_boxes``, for one rectangle."""
    (a, b, c), (d, e, f) = matrix.tolist()
    return (
        c + min(a * x1, a * x2) + min(b * y1, b * y2),
        f + min(d * x1, d * x2) + min(e * y1, e * y2),
        c + max(a * x1, a * x2) + max(b * y1, b * y2),
        f + max(d * x1, d * x2) + max(e * y1, e * y2),
    )


def canvas_like(pixels: np.ndarray, size: tuple[int, int], rule: Input, use: str = "canvas") -> np.ndarray:
    """A canvas for ``paste`` of such pixels: uint8 [h, w, 4] of the padding's value for [h, w, 3], ignored everywhere
    for class ids [h, w]. Four channels, because OpenCV warps those twice as fast as three; that canvas is
    ``scratch`` of ``use``."""
    if pixels.ndim == 2:
        return np.full(size, outside(pixels, rule), dtype=np.uint8)
    canvas = scratch(use, (*size, 4))
    canvas.fill(rule.pad)
    return canvas


def pasted(canvas: np.ndarray) -> np.ndarray:
    """What was pasted into a canvas, as [h, w, 3] or [h, w]."""
    return canvas if canvas.ndim == 2 else cv2.cvtColor(canvas, cv2.COLOR_RGBA2RGB)


def paste(canvas: np.ndarray, image: np.ndarray, matrix: np.ndarray) -> None:
    """Warp an RGB image into a canvas in place, touching only the part it covers; ``canvas[:, :, 3]`` means nothing. A
    map of class ids [h, w] takes the nearest neighbour.

    ``matrix`` [2, 3] maps edge coordinates of the image (its first pixel covers 0 to 1) to those of the canvas, as it
    maps boxes. A border of one repeated pixel lets the image reach its own edge, where interpolation would fade it.
    """
    left, top, right, bottom = warp_bounds(matrix, 0, 0, image.shape[1], image.shape[0])
    x0, y0 = max(0, math.floor(left)), max(0, math.floor(top))
    x1, y1 = min(canvas.shape[1], math.ceil(right)), min(canvas.shape[0], math.ceil(bottom))
    if x0 >= x1 or y0 >= y1:
        return
    if canvas.ndim == 2:
        _paste_nearest(canvas[y0:y1, x0:x1], image, compose(np.array([[1.0, 0.0, -x0], [0.0, 1.0, -y0]]), matrix))
        return
    padded = _with_border(image)
    # between pixel centres: the padded image's first is half a pixel before the image, the region's half one inside it
    (a, b, c), (d, e, f) = matrix.tolist()
    centres = np.array([[a, b, c - 0.5 * (a + b) - x0 - 0.5], [d, e, f - 0.5 * (d + e) - y0 - 0.5]])
    cv2.warpAffine(
        padded,
        centres,
        (x1 - x0, y1 - y0),
        dst=canvas[y0:y1, x0:x1],
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_TRANSPARENT,
    )


def _paste_nearest(canvas: np.ndarray, ids: np.ndarray, matrix: np.ndarray) -> None:
    """As ``paste``, for class ids: every pixel of the canvas takes the one that its centre lies in."""
    inverse = cv2.invertAffineTransform(matrix)
    rows, columns = np.arange(canvas.shape[0])[:, None] + 0.5, np.arange(canvas.shape[1])[None] + 0.5
    x = np.floor(inverse[0, 0] * columns + inverse[0, 1] * rows + inverse[0, 2]).astype(np.int64)
    y = np.floor(inverse[1, 0] * columns + inverse[1, 1] * rows + inverse[1, 2]).astype(np.int64)
    inside = (x >= 0) & (y >= 0) & (x < ids.shape[1]) & (y < ids.shape[0])
    canvas[inside] = ids[y[inside], x[inside]]


def _with_border(image: np.ndarray) -> np.ndarray:
    """uint8 RGB [h, w, 3] as [h + 2, w + 2, 4], its edge repeated once, in one pass over the pixels; ``scratch``."""
    out = scratch("bordered", (image.shape[0] + 2, image.shape[1] + 2, 4))
    cv2.cvtColor(image, cv2.COLOR_RGB2RGBA, dst=out[1:-1, 1:-1])
    out[1:-1, 0], out[1:-1, -1] = out[1:-1, 1], out[1:-1, -2]
    out[0], out[-1] = out[1], out[-2]
    return out
