"""``train_batch0.jpg``: a batch as the network sees it, in true colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.pictures.boxes import draw_boxes
from libreyolo_core.pictures.grid import inside, resize, sheet, write
from libreyolo_core.pictures.pairs import class_legend
from libreyolo_core.pictures.palette import class_colour
from libreyolo_core.targets import BoxTargets, ClassTargets

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
    heading = f"{len(batch)} images of {batch.images.shape[3]} x {batch.images.shape[2]} pixels"
    heading += f", the first {MOST} shown" if len(batch) > MOST else ""
    return write(sheet(tiles, columns, captions=captions, heading=heading, legend=class_legend(classes, names)), path)


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
    heading = f"{len(batch)} images of {batch.images.shape[3]} x {batch.images.shape[2]} pixels"
    heading += f", the first {MOST} shown" if len(batch) > MOST else ""
    return write(sheet(tiles, columns, captions=captions, heading=heading), path)


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
