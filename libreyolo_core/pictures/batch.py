"""``train_batch0.jpg``: a batch as the network sees it, in true colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.pictures.boxes import draw_boxes, draw_points
from libreyolo_core.pictures.grid import inside, resize, sheet, write
from libreyolo_core.pictures.masks import blend_mask, present
from libreyolo_core.pictures.pairs import MARK_PX, class_legend
from libreyolo_core.pictures.palette import class_colour
from libreyolo_core.targets import IGNORED, BoxTargets, ClassTargets, ImageTargets, MaskTargets

MOST = 16
WIDE = 1800


def box_batch(batch: Batch, names: dict[int, str], path: Path, colour: str) -> Path:
    """A grid of the batch's first 16 images with their boxes.

    Args:
        colour: channel order of ``batch.images``, ``rgb`` or ``bgr``.
    """
    targets = batch.targets
    assert isinstance(targets, BoxTargets)
    photos, columns, room = _photos(batch.images, colour)
    tiles, captions, classes = [], [], set()
    for i, photo in enumerate(photos):
        h, w, factor = inside(photo.shape[0], photo.shape[1], room)
        real = targets.valid[i].cpu()
        boxes, labels = targets.boxes[i].cpu()[real].numpy(), targets.labels[i].cpu()[real].tolist()
        classes |= set(labels)
        texts = ["" if len(names) == 1 else names.get(c, str(c)) for c in labels]
        colours = [class_colour(c) for c in labels]
        tiles.append(draw_boxes(resize(photo, (h, w)), boxes * factor, texts, colours, line=2, size=11))
        captions.append(f"{len(labels)} · {Path(batch.paths[i]).name}")
    legend = class_legend(classes, names)
    return write(sheet(tiles, columns, captions=captions, heading=_heading(batch), legend=legend), path)


def class_batch(batch: Batch, names: dict[int, str], path: Path, colour: str) -> Path:
    """A grid of the batch's first 16 images with their classes (the shares, where images are mixed)."""
    targets = batch.targets
    assert isinstance(targets, ClassTargets)
    photos, columns, room = _photos(batch.images, colour)
    tiles, captions = [], []
    for i, photo in enumerate(photos):
        h, w, _ = inside(photo.shape[0], photo.shape[1], room)
        tiles.append(resize(photo, (h, w)))
        captions.append(_caption(targets.labels[i].cpu(), names))
    return write(sheet(tiles, columns, captions=captions, heading=_heading(batch)), path)


def point_batch(batch: Batch, names: dict[int, str], path: Path, colour: str) -> Path:
    """A grid of the batch's first 16 images with the centres of their boxes."""
    targets = batch.targets
    assert isinstance(targets, BoxTargets)
    photos, columns, room = _photos(batch.images, colour)
    tiles, captions, classes = [], [], set()
    for i, photo in enumerate(photos):
        h, w, factor = inside(photo.shape[0], photo.shape[1], room)
        real = targets.valid[i].cpu()
        boxes, labels = targets.boxes[i].cpu()[real].numpy(), targets.labels[i].cpu()[real].tolist()
        classes |= set(labels)
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2 * factor
        colours = [class_colour(c) for c in labels]
        tiles.append(draw_points(resize(photo, (h, w)), centres, [""] * len(labels), colours, radius=MARK_PX))
        captions.append(f"{len(labels)} · {Path(batch.paths[i]).name}")
    legend = class_legend(classes, names)
    return write(sheet(tiles, columns, captions=captions, heading=_heading(batch), legend=legend), path)


def mask_batch(batch: Batch, names: dict[int, str], path: Path, colour: str) -> Path:
    """A grid of the batch's first 16 images, coloured by the class of each pixel."""
    targets = batch.targets
    assert isinstance(targets, MaskTargets)
    photos, columns, room = _photos(batch.images, colour)
    masks = [m.cpu().numpy() for m in targets.masks[: len(photos)]]
    tiles, captions = [], []
    for i, photo in enumerate(photos):
        h, w, _ = inside(photo.shape[0], photo.shape[1], room)
        tiles.append(resize(blend_mask(photo, masks[i], hatched=True), (h, w)))
        captions.append(f"{(masks[i] != IGNORED).mean():.0%} labelled · {Path(batch.paths[i]).name}")
    legend = class_legend(present(masks), names)
    heading = f"{_heading(batch)}; hatched: ignored"
    return write(sheet(tiles, columns, captions=captions, heading=heading, legend=legend), path)


def image_batch(batch: Batch, path: Path, colour: str) -> Path:
    """A grid of the batch's first 8 images, each above its clean version."""
    targets = batch.targets
    assert isinstance(targets, ImageTargets)
    few = MOST // 2
    degraded, _, _ = _photos(batch.images[:few], colour)
    clean, _, _ = _photos(targets.images[:few], colour)
    columns = min(4, len(degraded))
    wide = min(WIDE // columns, 480)
    tiles, captions = [], []
    for first in range(0, len(degraded), columns):
        part = range(first, min(first + columns, len(degraded)))
        for photos, what in ((degraded, "input"), (clean, "clean")):
            for i in part:
                h, w, _ = inside(photos[i].shape[0], photos[i].shape[1], (wide, wide))
                tiles.append(resize(photos[i], (h, w)))
                captions.append(f"{what} · {Path(batch.paths[i]).name}")
            if len(part) < columns:  # an incomplete row would let the clean images move up beside their inputs
                blank = np.full((1, 1, 3), 255, dtype=np.uint8)
                tiles += [blank] * (columns - len(part))
                captions += [""] * (columns - len(part))
    heading = _heading(batch, few) + ", input above clean"
    return write(sheet(tiles, columns, captions=captions, heading=heading), path)


def _heading(batch: Batch, most: int = MOST) -> str:
    heading = f"{len(batch)} images of {batch.images.shape[3]} x {batch.images.shape[2]} pixels"
    return heading + (f", the first {most} shown" if len(batch) > most else "")


def _caption(label: Tensor, names: dict[int, str]) -> str:
    if label.dim() == 0:
        return names[int(label)]
    shares = label.numpy()
    order = [int(c) for c in np.argsort(-shares)[:3] if shares[c] > 0]
    if len(order) == 1:
        return names[order[0]]
    return " + ".join(f"{shares[c]:.2f} {names[c]}" for c in order)


def _photos(images: Tensor, colour: str) -> tuple[list[np.ndarray], int, tuple[int, int]]:
    """The images as RGB [H, W, 3], how many columns they take, and the room (height, width) of each."""
    photos = images[:MOST].cpu().numpy().transpose(0, 2, 3, 1)
    if colour == "bgr":
        photos = photos[..., ::-1]
    columns = int(np.ceil(len(photos) ** 0.5))
    wide = min(WIDE // columns, 640)
    return [np.ascontiguousarray(p) for p in photos], columns, (wide, wide)
