"""Crops of 64 to 96 px to classify: around a tree, or of a place without any. The same photos always give the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from libreyolo_core.data.decode import read_image
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.scan import ImageRecord
from libreyolo_data_treecrowns.made import made_once, photos_of

VERSION = 2
"""Raised when the crops change, so that those cut before are not used."""
LOW_PX, HIGH_PX = 64, 96
MARGIN = 1.3
"""A crop is this much larger than its tree, within the limits."""
PER_PHOTO = 12
"""At most this many crops of each class from one photo."""
HOLD_OUT = 5
"""Of so many photos one goes to ``val``, with all its crops; photos do not overlap."""
TRIES = 3000
"""Places tried per photo for crops without a tree."""


def cut_crops(photos: Path) -> Path:
    """The folder with ``train`` and ``val``, in the cache directory; complete, or not there."""
    return made_once("treecrowns-classify", VERSION, lambda folder: _write(photos, folder))


def _write(photos: Path, folder: Path) -> None:
    found = photos_of(photos)
    records = [*found["train"], *found["val"]]
    held_out = records[HOLD_OUT // 2 :: HOLD_OUT]
    _write_split([record for record in records if all(record is not h for h in held_out)], folder / "train")
    _write_split(held_out, folder / "val")


def _write_split(records: list[ImageRecord], folder: Path) -> None:
    """As many crops of one class as of the other, spread over the photos."""
    from PIL import Image

    crops: dict[str, list[tuple[str, np.ndarray]]] = {"tree": [], "background": []}
    for number, record in enumerate(records):
        rng = keyed(number, VERSION)
        photo = read_image(record.path)
        for kind, windows in (("tree", _around_trees(record, rng)), ("background", _without_tree(record, rng))):
            for count, (x, y, side) in enumerate(windows):
                name = f"{Path(record.path).stem}_{count:02d}.png"
                crops[kind].append((name, photo[y : y + side, x : x + side]))
    fewest = min(map(len, crops.values()))
    for kind, found in crops.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for i in range(fewest):
            name, crop = found[i * len(found) // fewest]
            Image.fromarray(crop).save(folder / kind / name)


def _around_trees(record: ImageRecord, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """(x, y, side) of squares around some of the trees, moved into the photo."""
    height, width = record.size
    windows = []
    for i in rng.permutation(len(record.boxes))[:PER_PHOTO]:
        x1, y1, x2, y2 = record.boxes[i]
        side = int(min(max(MARGIN * max(x2 - x1, y2 - y1), LOW_PX), HIGH_PX, height, width))
        x, y = (int(min(max((a + b - side) / 2, 0), end - side)) for a, b, end in ((x1, x2, width), (y1, y2, height)))
        windows.append((x, y, side))
    return windows


def _without_tree(record: ImageRecord, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """(x, y, side) of random squares that touch no box and overlap each other by less than half a side."""
    height, width = record.size
    windows: list[tuple[int, int, int]] = []
    for _ in range(TRIES):
        side = min(int(rng.integers(LOW_PX, HIGH_PX + 1)), height, width)
        x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
        x1, y1, x2, y2 = record.boxes.T
        touches = ((x1 < x + side) & (x2 > x) & (y1 < y + side) & (y2 > y)).any()
        near = any(max(abs(x - u), abs(y - v)) < side / 2 for u, v, _ in windows)
        if not touches and not near:
            windows.append((x, y, side))
        if len(windows) == PER_PHOTO:
            break
    return windows
