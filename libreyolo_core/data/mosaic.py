"""Augmentations that combine several photos: mosaic and mixup, with the conventions of Ge et al., 2021, section 2.

A mosaic is defined on a canvas of twice the size, which is then warped to the input. The canvas is never built: each
photo is warped straight to where it ends up, in one interpolation, and a photo that ends up outside is not even read.
"""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.transforms import Context, areas, visible
from libreyolo_core.data.warp import affine_matrix, canvas_like, compose, paste, pasted, warp_bounds, warp_boxes
from libreyolo_core.errors import ConfigError


def mosaic(spec: augment.Mosaic, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Four photos around a random centre, then a random affine map to the input."""
    height, width = context.size
    centre_y, centre_x = (int(rng.uniform(*spec.centre) * side) for side in (height, width))
    partners = rng.integers(context.count, size=3).tolist()
    to_input = affine_matrix(spec, rng, context.size)
    canvas = canvas_like(sample.image, context.size, context.input)
    layers = {name: canvas_like(pixels, context.size, context.input, name) for name, pixels in sample.layers.items()}
    all_boxes, all_labels = [], []
    for corner in range(4):  # top-left, top-right, bottom-left, bottom-right of the centre
        tile = sample
        shape = context.shape(partners[corner - 1]) if corner else sample.image.shape[:2]
        placed = _place_tile(corner, shape, (centre_x, centre_y), to_input, context.size, spec.enlarge)
        if placed is None:
            continue
        if corner:
            tile = context.load(partners[corner - 1])
            if tile.image.shape[:2] != shape:  # another photo stands in for one that became unreadable
                shape = tile.image.shape[:2]
                placed = _place_tile(corner, shape, (centre_x, centre_y), to_input, context.size, spec.enlarge)
                if placed is None:
                    continue
        _paste_part(canvas, tile.image, *placed)
        for name, layer in layers.items():
            _paste_part(layer, tile.layers[name], *placed)
        boxes, labels = _on_input(tile, *placed, spec.min_area, context.size)
        if spec.min_side and len(boxes):
            wide = (boxes[:, 2:] - boxes[:, :2]).min(axis=1) > spec.min_side
            boxes, labels = boxes[wide], labels[wide]
        all_boxes.append(boxes)
        all_labels.append(labels)
    return replace(
        sample,
        image=pasted(canvas),
        boxes=np.concatenate([np.zeros((0, 4), np.float32), *all_boxes]),
        labels=np.concatenate([np.zeros(0, np.int64), *all_labels]),
        layers={name: pasted(layer) for name, layer in layers.items()},
        extra={**sample.extra, "mosaic": True},
    )


Part = tuple[float, float, float, float]


def _place_tile(
    corner: int,
    shape: tuple[int, int],
    centre: tuple[int, int],
    to_input: np.ndarray,
    size: tuple[int, int],
    enlarge: bool,
) -> tuple[Part, np.ndarray] | None:
    """The part of a photo (x1 y1 x2 y2 in its own pixels) that lies on the canvas of twice the size, and the map [2, 3]
    from its pixels to the input; ``None`` where nothing of it ends up inside."""
    (height, width), (rows, columns) = size, shape
    scale = min(height / rows, width / columns)
    if not enlarge:
        scale = min(1.0, scale)
    left = centre[0] - (columns * scale if corner in (0, 2) else 0)
    top = centre[1] - (rows * scale if corner in (0, 1) else 0)
    whole = compose(to_input, np.array([[scale, 0.0, left], [0.0, scale, top]]))
    part = (
        max(0.0, -left) / scale,
        max(0.0, -top) / scale,
        min(columns, (2 * width - left) / scale),
        min(rows, (2 * height - top) / scale),
    )
    if part[2] <= part[0] or part[3] <= part[1]:
        return None
    x1, y1, x2, y2 = warp_bounds(whole, *part)
    return (part, whole) if x1 < width and y1 < height and x2 > 0 and y2 > 0 else None


def _paste_part(canvas: np.ndarray, image: np.ndarray, part: Part, whole: np.ndarray) -> None:
    left, top = int(part[0]), int(part[1])
    right, bottom = math.ceil(part[2] - 1e-6), math.ceil(part[3] - 1e-6)
    paste(canvas, image[top:bottom, left:right], compose(whole, np.array([[1.0, 0.0, left], [0.0, 1.0, top]])))


def _on_input(
    tile: Sample, part: Part, whole: np.ndarray, min_area: float, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """A photo's boxes on the input: cut at the canvas and at the input, judged against their whole area."""
    if not len(tile.boxes):
        return tile.boxes, tile.labels
    cut = tile.boxes.clip(np.array(part[:2] * 2, np.float32), np.array(part[2:] * 2, np.float32))
    before, after = areas(tile.boxes), areas(cut)
    shown = after > 0
    if not min_area:
        return visible(warp_boxes(cut[shown], whole), tile.labels[shown], size, 0.0)
    left = after[shown] / before[shown]  # what the canvas left of each box
    warped, labels = warp_boxes(cut[shown], whole), tile.labels[shown]
    inside = warped.copy()
    inside[:, 0::2], inside[:, 1::2] = inside[:, 0::2].clip(0, size[1]), inside[:, 1::2].clip(0, size[0])
    shares = left * areas(inside) / areas(warped)
    keep = (shares >= min_area) & (shares > 0)
    return inside[keep], labels[keep]


TRIES = 20
"""How often mixup looks for a partner that has boxes."""


def mixup(spec: augment.MixUp, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Blend a mosaic that has boxes half and half with another photo that has some, scaled and perhaps mirrored."""
    if sample.layers:
        raise ConfigError(
            f"augment.mixup blends photos, of which a {next(iter(sample.layers))} cannot be blended",
            where="augment.mixup",
            mend="Set mixup_prob=0, or take MixUp out of the sheet.",
        )
    if not sample.extra.get("mosaic") or not len(sample.boxes):
        return sample
    partner = next((int(i) for i in rng.integers(context.count, size=TRIES) if context.boxes(int(i))), None)
    if partner is None:
        return sample
    height, width = context.size
    jitter, mirrored = rng.uniform(*spec.scale), rng.random() < spec.flip
    share_y, share_x = rng.random(2)
    other = context.load(partner)
    rows, columns = other.image.shape[:2]
    scale = min(height / rows, width / columns) * jitter
    resized = cv2.resize(other.image, (max(1, round(columns * scale)), max(1, round(rows * scale))))
    boxes = other.boxes * np.array([resized.shape[1] / columns, resized.shape[0] / rows] * 2, dtype=np.float32)
    # the partner is letterboxed on a board that is scaled and mirrored with it
    board_height, board_width = (
        max(resized.shape[0], round(height * jitter)),
        max(resized.shape[1], round(width * jitter)),
    )
    left = 0
    if mirrored:
        left = board_width - resized.shape[1]
        boxes[:, 0::2] = resized.shape[1] - boxes[:, 2::-2]
        resized = cv2.flip(resized, 1)
    # of a board that is larger than the input a random part shows, a smaller one leaves black to the right and below
    left -= int(share_x * max(0, board_width - width))
    top = -int(share_y * max(0, board_height - height))
    board = np.zeros((height, width, 3), dtype=np.uint8)
    board[: min(height, board_height), : min(width, board_width)] = context.input.pad
    _put(board, resized, left, top)
    boxes, labels = visible(boxes + np.array([left, top] * 2, dtype=np.float32), other.labels, context.size, 0.0)
    return replace(
        sample,
        image=cv2.addWeighted(sample.image, 0.5, board, 0.5, 0.0, dst=board),
        boxes=np.concatenate([sample.boxes, boxes]),
        labels=np.concatenate([sample.labels, labels]),
    )


def _put(board: np.ndarray, image: np.ndarray, left: int, top: int) -> None:
    """Copy an image to (left, top) of a board, where either may reach over the other's edge."""
    y1, x1 = max(0, top), max(0, left)
    y2, x2 = min(board.shape[0], top + image.shape[0]), min(board.shape[1], left + image.shape[1])
    if y1 < y2 and x1 < x2:
        board[y1:y2, x1:x2] = image[y1 - top : y2 - top, x1 - left : x2 - left]
