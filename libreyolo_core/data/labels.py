"""The rules for labels, text files and COCO JSON alike: what is kept, what is dropped, and as which fault.

A row is ``class cx cy w h``, normalised to the photo, or ``class x1 y1 x2 y2 x3 y3 ...``, a polygon, which becomes its
bounding box.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EDGE = 0.005
"""How far beyond the photo, as a share of its side, a coordinate may lie and be clipped instead of dropped."""

FAULTS = {
    "image missing": "listed, but not on the disk",
    "image unreadable": "damaged, truncated, empty, too large or no image",
    "label unreadable": "the label file is no text",
    "label missing": "no label file: counts as background",
    "wrong number of fields": "not 'class cx cy w h' and no polygon",
    "not a number": "text, NaN or infinity",
    "bad class": "negative, fractional, or not below the number of classes",
    "out of range": "beyond the photo by more than 0.5% of its side",
    "clipped": "beyond the photo by at most 0.5% of its side: clipped",
    "no area": "zero or negative width or height",
    "duplicate": "the same box twice: kept once",
    "shared label": "another image has the same label path: only the first is used",
    "size mismatch": "width and height in the JSON, or of mask or clean image, are not the photo's",
    "mask missing": "no mask: the image is left out",
    "mask unreadable": "damaged, empty, or without a channel of class ids: the image is left out",
    "mask value": "values or colours that are no class: those pixels are ignored",
    "mask ignored": "a mask in which every pixel is ignored: the image is left out",
    "clean image missing": "nothing to compare with: the image is left out",
    "clean image unreadable": "damaged, truncated, empty, too large or no image: the image is left out",
    "unknown image": "an annotation of an image that the JSON does not list",
    "outside a class folder": "an image that lies in no class folder",
    "empty class folder": "a class without a single image",
}
"""Kinds of faults, in the order of the report."""
HARMLESS = frozenset({"label missing", "clipped"})
"""Kinds that nothing is lost by; ``strict`` does not mind them."""
LOSES_IMAGE = frozenset(
    {
        *("image missing", "image unreadable", "size mismatch", "mask missing", "mask unreadable", "mask ignored"),
        *("clean image missing", "clean image unreadable"),
    }
)
"""Kinds that leave a whole image out."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a data set.

    Args:
        kind: one of ``FAULTS``.
        path: the image, label file or JSON it is in.
        line: its line in a text file, counted from 1.
        detail: what stands there.
    """

    kind: str
    path: str
    line: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.detail}" if self.detail else place


@dataclass
class Rows:
    """What a label file holds.

    Args:
        boxes: float64 [n, 4], x1 y1 x2 y2 normalised to 0 .. 1.
        labels: int64 [n].
        faults: what was dropped or clipped.
    """

    boxes: np.ndarray
    labels: np.ndarray
    faults: list[Fault]


def label_path(image: str) -> str:
    """The label file of an image: the last path component ``images`` becomes ``labels``, the ending ``.txt``.
    An image outside any folder ``images`` has its label beside it."""
    path = Path(image)
    parts = list(path.parts)
    at = next((i for i in range(len(parts) - 2, -1, -1) if parts[i] == "images"), None)
    if at is not None:
        parts[at] = "labels"
    return str(Path(*parts).with_suffix(".txt"))


def label_lines(path: str) -> tuple[list[tuple[int, list[str]]], list[Fault]] | None:
    """Number (from 1) and fields of every line of a label file that is not blank, and why it cannot be read; ``None``
    where there is no file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        return [], [Fault("label unreadable", path, None, error.strerror or str(error))]
    if b"\0" in data:
        return [], [Fault("label unreadable", path, None, "it holds binary data")]
    lines = data.decode("utf-8-sig", errors="replace").splitlines()
    return [(i, fields) for i, line in enumerate(lines, start=1) if (fields := line.split())], []


def read_labels(path: str, classes: int) -> Rows | None:
    """The rows of a label file; ``None`` where there is no file. ``classes`` is the number of classes."""
    found = label_lines(path)
    if found is None:
        return None
    lines, faults = found
    rows: list[tuple[float, float, float, float, int]] = []
    seen: set[tuple[float, ...]] = set()
    for line, fields in lines:
        _take(fields, path, line, classes, rows, faults, seen)
    return _collect(rows, faults)


def _take(
    fields: Sequence[str], path: str, line: int, classes: int, rows: list, faults: list[Fault], seen: set
) -> None:
    """Judge one row of text; a good one goes to ``rows``, anything else to ``faults``."""
    polygon = len(fields) >= 7 and len(fields) % 2 == 1
    if len(fields) != 5 and not polygon:
        faults.append(Fault("wrong number of fields", path, line, f"{len(fields)} fields: {shortened(fields)}"))
        return
    judged = judge_numbers(fields, path, line, classes, faults)
    if judged is None:
        return
    label, numbers = judged
    if polygon:
        box = (min(numbers[0::2]), min(numbers[1::2]), max(numbers[0::2]), max(numbers[1::2]))
    else:
        cx, cy, w, h = numbers
        if w <= 0 or h <= 0:
            faults.append(Fault("no area", path, line, f"width {w:g}, height {h:g}"))
            return
        box = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
    kept = judge_box(box, path, line, shortened(fields[1:]), faults)
    if kept is None:
        return
    if (label, *numbers) in seen:
        faults.append(Fault("duplicate", path, line, shortened(fields)))
        return
    seen.add((label, *numbers))
    rows.append((*kept, label))


def judge_numbers(
    fields: Sequence[str], path: str, line: int, classes: int, faults: list[Fault]
) -> tuple[int, list[float]] | None:
    """Class and coordinates of a row; ``None`` and a fault where one is no number or the class does not exist."""
    try:
        values = [float(f) for f in fields]
    except ValueError:
        faults.append(Fault("not a number", path, line, shortened(fields)))
        return None
    if not all(map(math.isfinite, values)):
        faults.append(Fault("not a number", path, line, shortened(fields)))
        return None
    label, *numbers = values
    if label != int(label) or not 0 <= label < classes:
        faults.append(Fault("bad class", path, line, f"class {fields[0]}, {classes} classes"))
        return None
    return int(label), numbers


def judge_box(
    box: tuple[float, float, float, float], path: str, line: int | None, detail: str, faults: list[Fault]
) -> tuple[float, float, float, float] | None:
    """A normalised box (x1 y1 x2 y2), clipped where it hardly leaves the photo; ``None`` and a fault where it does."""
    beyond = max(-min(box), max(box) - 1)
    if beyond > EDGE + 1e-9:
        hint = "; are these pixels?" if max(box) > 2 else ""
        faults.append(Fault("out of range", path, line, detail + hint))
        return None
    x1, y1, x2, y2 = (min(max(v, 0.0), 1.0) for v in box)
    if x2 <= x1 or y2 <= y1:
        faults.append(Fault("no area", path, line, detail))
        return None
    if beyond > 1e-6:  # six decimals, as most tools write, round this far
        faults.append(Fault("clipped", path, line, detail))
    return x1, y1, x2, y2


def highest_class(folder: Path) -> int:
    """The highest class index that any label file under ``folder`` uses; -1 for none."""
    highest = -1
    for path in sorted(folder.rglob("*.txt")):
        rows = read_labels(str(path), classes=100_000)
        if rows is not None and len(rows.labels):
            highest = max(highest, int(rows.labels.max()))
    return highest


def _collect(rows: Iterable[tuple[float, float, float, float, int]], faults: list[Fault]) -> Rows:
    table = np.array([r[:4] for r in rows], dtype=np.float64).reshape(-1, 4)
    return Rows(table, np.array([r[4] for r in rows], dtype=np.int64), faults)


def shortened(fields: Sequence[str]) -> str:
    """A row of text, cut to 80 characters."""
    text = " ".join(fields)
    return text if len(text) <= 80 else text[:77] + "..."
