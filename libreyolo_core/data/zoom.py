"""Zooming out onto a larger canvas and zooming in on a part (Liu et al., 2016, "SSD", section 2.2)."""

from __future__ import annotations

import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.transforms import Context, areas, moved
from libreyolo_core.targets import IGNORED

TRIES = 40
"""How many parts are drawn for one wanted overlap before another overlap is wanted."""


def zoom_out(spec: augment.ZoomOut, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Put the photo at a random place of a canvas whose sides are longer by one factor. A photo without boxes stays as
    it is; nothing is lost from a photo that has some."""
    if not len(sample.boxes):
        return sample
    height, width = sample.image.shape[:2]
    factor = rng.uniform(*spec.scale)
    tall, wide = max(height, int(height * factor)), max(width, int(width * factor))
    top, left = int(rng.integers(tall - height + 1)), int(rng.integers(wide - width + 1))

    def put(pixels: np.ndarray) -> np.ndarray:
        value = IGNORED if pixels.ndim == 2 else spec.fill
        canvas = (
            np.full((tall, wide, *pixels.shape[2:]), value, dtype=np.uint8) if value else _black(tall, wide, pixels)
        )
        canvas[top : top + height, left : left + width] = pixels
        return canvas

    return moved(sample, put, boxes=sample.boxes + np.array([left, top] * 2, dtype=np.float32))


def _black(height: int, width: int, pixels: np.ndarray) -> np.ndarray:
    # memory that comes zeroed costs nothing until it is touched, and a crop that follows touches only its part
    return np.zeros((height, width, *pixels.shape[2:]), dtype=np.uint8)


def iou_crop(spec: augment.IoUCrop, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Cut out a random part that overlaps some box by at least a randomly chosen IoU; one of the choices is the whole
    photo. A part contains the centre of some box. Boxes are cut at its edge; those whose centre is inside stay, and
    those of which at least ``spec.min_area`` is left. A photo without boxes stays as it is."""
    if not len(sample.boxes):
        return sample
    height, width = sample.image.shape[:2]
    while (wanted := float(rng.choice(spec.overlaps))) < 1:
        for _ in range(TRIES):
            w, h = (int(side * rng.uniform(*spec.scale)) for side in (width, height))
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            if not (w and h and spec.ratio[0] <= w / h <= spec.ratio[1]):
                continue
            part = np.array([left, top, left + w, top + h], dtype=np.float32)
            inside = _centre_inside(sample.boxes, part)
            if not inside.any() or _iou(sample.boxes[inside], part).max() < wanted:
                continue
            cut = _cut(sample.boxes, part)
            left_over = areas(cut)
            keep = (left_over > 0) & (inside | (left_over >= spec.min_area * areas(sample.boxes)))
            return moved(
                sample,
                lambda pixels: pixels[top : top + h, left : left + w],  # noqa: B023, called before the next round
                boxes=cut[keep] - np.array([left, top] * 2, dtype=np.float32),
                labels=sample.labels[keep],
            )
    return sample


def _centre_inside(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    return ((centre > part[:2]) & (centre < part[2:])).all(axis=1)


def _cut(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """What of boxes lies in a part; a box outside becomes empty at its edge."""
    return np.concatenate([boxes[:, :2].clip(part[:2], part[2:]), boxes[:, 2:].clip(part[:2], part[2:])], axis=1)


def _iou(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    shared = areas(_cut(boxes, part))
    return shared / (areas(boxes) + areas(part[None]) - shared)
