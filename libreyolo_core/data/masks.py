"""Masks: one class id per pixel. Where the mask of a photo lies, and how the values in the file become class ids.

A mask is a PNG with one channel (modes 1, L, P, I;16) of class ids or of values that ``label_mapping`` translates, a
picture whose colours ``palette`` names, or it is drawn from polygon labels. 255 means: nothing is known of this pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from libreyolo_core.data.decode import open_raw
from libreyolo_core.data.labels import Fault
from libreyolo_core.data.polygons import draw_polygons
from libreyolo_core.errors import ImageError
from libreyolo_core.targets import IGNORED

FOLDER = "masks"
"""The folder that stands for ``images`` unless the YAML has ``masks_dir``."""
_PLAIN_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class MaskReading:
    """How the masks of a data set are found and read.

    Args:
        classes: number of classes, at most 255.
        mapping: (value in the file, class id) pairs; a value without one is ignored. Empty: values are class ids.
        palette: (red, green, blue, class id) of every class. Empty: the masks have no colours.
        polygons: masks are drawn from label files, and the last class is what no polygon covers.
        folder: a folder name that stands for the last folder ``images``, or the path of a folder.
    """

    classes: int
    mapping: tuple[tuple[int, int], ...] = ()
    palette: tuple[tuple[int, int, int, int], ...] = ()
    polygons: bool = False
    folder: str = FOLDER


def mask_path(image: str, root: Path, folder: str = FOLDER) -> str:
    """The mask of an image: ending ``.png``, and

    - ``folder`` is a plain name: the last folder ``images`` of the path becomes it (``images/train/a.jpg`` ->
      ``masks/train/a.png``);
    - ``folder`` is a path, absolute or relative to ``root``: it is followed by what follows ``images``.

    In the place of ``images``, an image outside any such folder has its first folder below ``root``
    (``photos/train/a.jpg`` -> ``masks/train/a.png``), and an image elsewhere the folder that holds it.
    """
    path = Path(image)
    parts = list(path.parts)
    at = next((i for i in range(len(parts) - 2, -1, -1) if parts[i] == "images"), None)
    if at is None:
        below = len(root.parts)
        inside = parts[:below] == list(root.parts) and len(parts) > below + 1
        at = below if inside else len(parts) - 2
    after = parts[at + 1 :]
    head = Path(*parts[:at]) / folder if len(Path(folder).parts) == 1 else root / folder
    return str(head.joinpath(*after).with_suffix(".png"))


def read_mask(path: str, size: tuple[int, int], reading: MaskReading) -> np.ndarray:
    """Class ids uint8 [H, W], 255 where nothing is known.

    Args:
        path: the mask, or the label file it is drawn from.
        size: (height, width) of the photo; decides the size of what is drawn.

    Raises:
        ImageError: missing, damaged, or without a channel of values.
    """
    if reading.polygons:
        return draw_polygons(path, size, reading.classes - 1)[0]
    if reading.palette:
        return _of_colours(path, reading.palette)[0]
    values = _values(path)
    return _table(reading, len(_range(values)))[values]


def judge_mask(path: str, size: tuple[int, int], reading: MaskReading) -> tuple[np.ndarray, np.ndarray, list[Fault]]:
    """As ``read_mask``, with what a scan wants to know.

    Returns:
        The class ids; int64 [classes], pixels of each class; faults: values that are no class.
    """
    faults: list[Fault] = []
    if reading.polygons:
        mask, faults = draw_polygons(path, size, reading.classes - 1)
    elif reading.palette:
        mask, strange = _of_colours(path, reading.palette)
        if strange:
            some = ", ".join(f"({r}, {g}, {b})" for r, g, b in list(strange)[:5])
            faults.append(Fault("mask value", path, None, f"{sum(strange.values()):,} pixels of colours like {some}"))
    else:
        values = _values(path)
        found = np.bincount(values.ravel(), minlength=len(_range(values)))
        table = _table(reading, len(found))
        mask = table[values]
        if not reading.mapping:
            numbers = [v for v in np.flatnonzero(found).tolist() if v >= reading.classes and v != IGNORED]
            if numbers:
                some = ", ".join(map(str, numbers[:5])) + (" ..." if len(numbers) > 5 else "")
                detail = f"{int(found[numbers].sum()):,} pixels of value {some}; {reading.classes} classes"
                faults.append(Fault("mask value", path, None, detail))
    pixels = np.bincount(mask.ravel(), minlength=IGNORED + 1)[: reading.classes].astype(np.int64)
    return mask, pixels, faults


def _values(path: str) -> np.ndarray:
    """The numbers in a mask of one channel, uint8 or uint16 [H, W]."""
    image = open_raw(path)
    if image.mode not in _PLAIN_MODES:
        raise ImageError(
            f"It has colours (mode {image.mode}), not one channel of class ids",
            where=path,
            mend="Name the colours with 'palette' in the data YAML, or save class ids.",
        )
    values = np.asarray(image)
    if values.dtype == np.bool_ or values.dtype == np.uint8:
        return values.astype(np.uint8)
    if values.min() < 0 or values.max() > 65535:
        raise ImageError("It has values beyond 16 bits", where=path, mend="Save class ids in 8 or 16 bits.")
    return values.astype(np.uint16)


def _range(values: np.ndarray) -> range:
    return range(256 if values.dtype == np.uint8 else 65536)


@lru_cache(maxsize=8)
def _table(reading: MaskReading, length: int) -> np.ndarray:
    """Class id uint8 by value."""
    table = np.full(length, IGNORED, dtype=np.uint8)
    if reading.mapping:
        for value, label in reading.mapping:
            if value < length:
                table[value] = label
    else:
        table[: reading.classes] = np.arange(reading.classes)
    return table


def _of_colours(
    path: str, palette: tuple[tuple[int, int, int, int], ...]
) -> tuple[np.ndarray, dict[tuple[int, int, int], int]]:
    """Class ids by colour, and how many pixels have each colour that the palette does not name."""
    rgb = np.asarray(open_raw(path).convert("RGB")).astype(np.uint32)
    codes = rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]
    mask = np.full(codes.shape, IGNORED, dtype=np.uint8)
    known = np.zeros(codes.shape, dtype=bool)
    for red, green, blue, label in palette:
        here = codes == (red << 16 | green << 8 | blue)
        mask[here] = label
        known |= here
    if known.all():
        return mask, {}
    numbers, counts = np.unique(codes[~known], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return mask, {(n >> 16, n >> 8 & 255, n & 255): c for n, c in zip(numbers[order].tolist(), counts[order].tolist())}
