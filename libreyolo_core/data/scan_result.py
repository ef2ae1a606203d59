"""What a scan found: the usable images, every fault, and the report about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.data.labels import FAULTS, HARMLESS, LOSES_IMAGE, Fault
from libreyolo_core.errors import DataError

if TYPE_CHECKING:
    from libreyolo_core.data.masks import MaskReading
    from libreyolo_core.data.pairs import PairNames

SHOWN = 10
"""Faults of each kind that a report shows."""
OBJECTS = {"detect": "boxes", "point": "points"}
"""What the tasks call their boxes, of which an image may have any number."""


@dataclass
class ImageRecord:
    """One usable image with its annotation.

    Args:
        path: absolute.
        size: (height, width) in pixels as shown, EXIF orientation applied.
        boxes: float32 [n, 4], x1 y1 x2 y2 in photo pixels (detect; empty to classify).
        labels: int64 [n] class indices (detect), or [1] (classify).
        crowd: bool [n], regions that hold many objects (COCO); ``None`` where there are none.
        areas: float32 [n], square pixels of the objects (COCO's are those of their outlines); ``None``: the boxes'.
        layers: files with further pixels of the image by name: ``mask`` (or the labels it is drawn from), ``clean``.
        pixels: int64 [classes], pixels of each class (semantic).
    """

    path: str
    size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray | None = None
    areas: np.ndarray | None = None
    layers: dict[str, str] = field(default_factory=dict)
    pixels: np.ndarray | None = None


@dataclass
class Scan:
    """What a split really holds.

    Args:
        split: its name.
        images: the usable images, in a fixed order.
        names: class names by index.
        faults: everything that was dropped or clipped.
        task: the task it was scanned for.
        where: what was given, for errors.
        category_ids: COCO category id by class index, ``None`` for other formats.
        image_ids: COCO image id of each image, ``None`` for other formats.
        looked_for: the first places where images were looked for.
        label_paths: the first places where labels, masks or clean images were looked for.
        reading: how masks are read, or pairs found; ``None`` for tasks without.
    """

    split: str
    images: list[ImageRecord]
    names: dict[int, str]
    faults: list[Fault] = field(default_factory=list)
    task: str = "detect"
    where: str = ""
    category_ids: dict[int, int] | None = None
    image_ids: list[Any] | None = None
    looked_for: list[str] = field(default_factory=list)
    label_paths: list[str] = field(default_factory=list)
    reading: MaskReading | PairNames | None = None

    @property
    def counts(self) -> dict[str, int]:
        """``images``; where there are boxes ``boxes`` or ``points`` (without crowd regions) and ``backgrounds`` (images
        without any); where there are masks ``labelled pixels`` and ``ignored pixels``; then every fault."""
        found = Counter(f.kind for f in self.faults)
        totals = {"images": len(self.images)}
        if self.task in OBJECTS:
            totals[OBJECTS[self.task]] = sum(_objects(r) for r in self.images)
            totals["backgrounds"] = sum(_objects(r) == 0 for r in self.images)
        if self.task == "semantic":
            totals["labelled pixels"] = sum(self.per_class.values())
            totals["ignored pixels"] = sum(r.size[0] * r.size[1] for r in self.images) - totals["labelled pixels"]
        return totals | {kind: found[kind] for kind in FAULTS if found[kind]}

    @property
    def per_class(self) -> dict[int, int]:
        """How many boxes (detect, point), images (classify, restore) or pixels (semantic) each class has."""
        if self.task == "restore":
            return dict.fromkeys(self.names, len(self.images))
        if self.task == "semantic":
            pixels = [r.pixels for r in self.images if r.pixels is not None]
            total = np.sum(pixels, axis=0) if pixels else np.zeros(len(self.names), np.int64)
            return {i: int(total[i]) for i in self.names}
        labels = [r.labels[~r.crowd] if r.crowd is not None else r.labels for r in self.images]
        total = np.bincount(np.concatenate([np.zeros(0, np.int64), *labels]), minlength=len(self.names))
        return {i: int(total[i]) for i in self.names}

    def report(self) -> str:
        """The findings in words: counts, and the first ten faults of each kind with file and line."""
        counts = self.counts
        head = ", ".join(f"{n:,} {k}" for k, n in counts.items() if k not in FAULTS)
        lines = [f"{self.split}: {head}"]
        for kind, why in FAULTS.items():
            of_kind = [f for f in self.faults if f.kind == kind]
            if of_kind:
                lines.append(f"  {kind}: {len(of_kind):,} ({why})")
                lines += [f"    {f}" for f in of_kind[:SHOWN]]
            if len(of_kind) > SHOWN:
                lines.append(f"    and {len(of_kind) - SHOWN:,} more")
        empty = [self.names[i] for i, n in self.per_class.items() if n == 0]
        if empty and self.images:
            lines.append(
                f"  classes that never occur: {', '.join(empty[:SHOWN])}{' ...' if len(empty) > SHOWN else ''}"
            )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Append the counts and every single fault to a text file."""
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{self.split}: {self.counts}\n")
            file.writelines(f"  {f.kind}\t{f}\n" for f in sorted(self.faults, key=lambda f: list(FAULTS).index(f.kind)))

    def raise_if_unusable(self) -> None:
        """Raise ``DataError`` when there is nothing to train or validate on; shows the first paths looked for."""
        if not self.images:
            bad = [f for f in self.faults if f.kind in LOSES_IMAGE]
            shown = [f"{f.path} ({f.kind})" for f in bad[:3]] or self.looked_for[:3]
            raise DataError(
                f"The {self.split} split has no usable image; looked for {', '.join(shown)}",
                where=self.where,
                mend="Correct the path in the data YAML, or the files.",
            )
        objects = OBJECTS.get(self.task)
        if objects and self.counts[objects] == 0 or self._without_polygon():
            thing = "polygon" if not objects else "box"
            dropped = [f for f in self.faults if f.kind not in HARMLESS]
            why = f"{len(dropped):,} rows were dropped, the first: {dropped[0]}" if dropped else "no label was found"
            raise DataError(
                f"The {self.split} split has {len(self.images):,} images and not one {thing}: {why}. "
                f"Labels were looked for at {', '.join(self.label_paths[:3])}",
                where=self.where,
                mend="Put the labels there: the last folder 'images' of a path becomes 'labels'."
                if objects
                else "Put rows with polygons there, or masks: the last folder 'images' of a path becomes 'masks'.",
            )

    def _without_polygon(self) -> bool:
        """Whether masks are drawn from labels and there was nothing to draw."""
        if self.task != "semantic" or not getattr(self.reading, "polygons", False):
            return False
        return not any(n for i, n in self.per_class.items() if i < len(self.names) - 1)

    def raise_if_faulty(self) -> None:
        """What ``strict=True`` asks for: raise ``DataError`` on the first fault that loses something."""
        serious = [f for f in self.faults if f.kind not in HARMLESS]
        if serious:
            first = serious[0]
            raise DataError(
                f"The {self.split} split has {len(serious):,} faults and strict=True; the first is {first.kind!r}"
                + (f": {first.detail}" if first.detail else ""),
                where=f"{first.path}:{first.line}" if first.line else first.path,
                mend="Mend them ('libreyolo check' lists all), or train without strict.",
            )


def _objects(record: ImageRecord) -> int:
    return len(record.boxes) - (0 if record.crowd is None else int(record.crowd.sum()))
