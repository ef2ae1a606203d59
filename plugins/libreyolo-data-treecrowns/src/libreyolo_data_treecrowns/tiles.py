"""Tiles of 200 px of the photos for semantic segmentation and for restoration; the split is that of the photos.

Crown outlines are not known, only boxes: the masks hold the ellipse that fits each box, which covers 79% of it. So a
mask is right about where crowns are and how large, and wrong by some pixels about their outline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from libreyolo_core.data.decode import read_image
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.scan import ImageRecord
from libreyolo_data_treecrowns.made import made_once, photos_of

SEMANTIC_VERSION, RESTORE_VERSION = 1, 1
"""Raised when the tiles change, so that those cut before are not used."""
TILE_PX = 200
LEAST_PX = 64
"""What is left of a photo at its right and bottom edge is a tile of its own if both sides are at least this long."""
BLUR_PX = (0.8, 1.6)
"""Range of the standard deviation of the Gaussian blur."""
NOISE = (3.0, 9.0)
"""Range of the standard deviation of the Gaussian noise, in grey values."""
STREAM = 7


def cut_semantic(photos: Path) -> Path:
    """The folder with ``images``, ``masks`` and ``classes.txt``: 0 is ground, 1 is crown."""
    return made_once("treecrowns-semantic", SEMANTIC_VERSION, lambda folder: _write_semantic(photos, folder))


def cut_restore(photos: Path) -> Path:
    """The folder with ``train`` and ``val``, each with ``inputs`` (blurred and noisy) and ``targets``."""
    return made_once("treecrowns-restore", RESTORE_VERSION, lambda folder: _write_restore(photos, folder))


def _write_semantic(photos: Path, folder: Path) -> None:
    for split, records in photos_of(photos).items():
        for record in records:
            photo, mask = read_image(record.path), crown_mask(record)
            for name, top, left, bottom, right in _tiles(record):
                _save(photo[top:bottom, left:right], folder / "images" / split / name)
                _save(mask[top:bottom, left:right], folder / "masks" / split / name)
    (folder / "classes.txt").write_text("ground\ncrown\n")


def _write_restore(photos: Path, folder: Path) -> None:
    number = 0
    for split, records in photos_of(photos).items():
        for record in records:
            photo = read_image(record.path)
            for name, top, left, bottom, right in _tiles(record):
                clean = photo[top:bottom, left:right]
                _save(clean, folder / split / "targets" / name)
                _save(degraded(clean, keyed(number, STREAM)), folder / split / "inputs" / name)
                number += 1


def crown_mask(record: ImageRecord) -> np.ndarray:
    """uint8 [H, W]: 1 in the ellipse that touches the sides of a box, 0 elsewhere."""
    height, width = record.size
    rows, columns = np.arange(height)[:, None] + 0.5, np.arange(width)[None] + 0.5
    mask = np.zeros((height, width), np.uint8)
    for x1, y1, x2, y2 in record.boxes.tolist():
        across, down = (x2 - x1) / 2, (y2 - y1) / 2
        inside = ((columns - (x1 + across)) / across) ** 2 + ((rows - (y1 + down)) / down) ** 2 <= 1
        mask[inside] = 1
    return mask


def degraded(clean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The image blurred and noisy, by an amount drawn from the generator."""
    blurred = cv2.GaussianBlur(clean.astype(np.float32), (0, 0), rng.uniform(*BLUR_PX))
    noisy = blurred + rng.normal(0.0, rng.uniform(*NOISE), clean.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def _tiles(record: ImageRecord) -> Iterator[tuple[str, int, int, int, int]]:
    """File name, top, left, bottom and right of every tile of a photo."""
    height, width = record.size
    for top in range(0, height, TILE_PX):
        for left in range(0, width, TILE_PX):
            bottom, right = min(top + TILE_PX, height), min(left + TILE_PX, width)
            if bottom - top >= LEAST_PX and right - left >= LEAST_PX:
                yield f"{Path(record.path).stem}_{top:03d}_{left:03d}.png", top, left, bottom, right


def _save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, compress_level=1)
