"""Masks drawn from polygon labels: rows ``class x1 y1 x2 y2 x3 y3 ...``, normalised to the photo."""

from __future__ import annotations

import math

import numpy as np
from pycocotools import mask as rasteriser

from libreyolo_core.data.labels import Fault, judge_box, judge_numbers, label_lines, shortened


def draw_polygons(path: str, size: tuple[int, int], classes: int) -> tuple[np.ndarray, list[Fault]]:
    """The polygons of a label file on a ground of the class ``classes``, the largest first, so that a small thing on a
    large one stays in view.

    Args:
        path: the label file; a missing one means that there is nothing.
        size: (height, width) of the photo.
        classes: number of classes that polygons may have.

    Returns:
        Class ids uint8 [H, W], and what was wrong with the rows; such rows are left out.
    """
    mask = np.full(size, classes, dtype=np.uint8)
    found = label_lines(path)
    if found is None:
        return mask, [Fault("label missing", path)]
    lines, faults = found
    polygons: list[tuple[float, int, np.ndarray]] = []
    for line, fields in lines:
        if len(fields) < 7 or len(fields) % 2 == 0:
            what = "a box, not a polygon: " if len(fields) == 5 else ""
            faults.append(Fault("wrong number of fields", path, line, f"{what}{shortened(fields)}"))
            continue
        judged = judge_numbers(fields, path, line, classes, faults)
        if judged is None:
            continue
        label, numbers = judged
        points = np.array(numbers).reshape(-1, 2)
        bounds = (*points.min(axis=0).tolist(), *points.max(axis=0).tolist())
        if judge_box(bounds, path, line, shortened(fields[1:]), faults) is None:
            continue
        points = points.clip(0, 1) * (size[1], size[0])
        polygons.append((_area(points), label, points))
    for _, label, points in sorted(polygons, key=lambda p: -p[0]):
        _fill(mask, points, label)
    return mask, faults


def _area(points: np.ndarray) -> float:
    """Area of a polygon [n, 2] in square pixels."""
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _fill(mask: np.ndarray, points: np.ndarray, label: int) -> None:
    """Draw within the polygon's own bounds: a photo may have hundreds."""
    left, top = (math.floor(v) for v in points.min(axis=0))
    right, bottom = (math.ceil(v) for v in points.max(axis=0))
    height, width = max(1, bottom - top), max(1, right - left)
    runs = rasteriser.frPyObjects([(points - (left, top)).ravel().tolist()], height, width)
    inside = rasteriser.decode(runs)[..., 0].astype(bool)
    part = mask[top : top + height, left : left + width]
    part[inside[: part.shape[0], : part.shape[1]]] = label
