"""COCO annotation files: any category ids, mapped to class indices and remembered for mapping back.

Boxes of ``iscrowd`` annotations are kept apart: validation ignores detections inside them, training never sees them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.data.labels import Fault, judge_box
from libreyolo_core.errors import DataError

if TYPE_CHECKING:
    from libreyolo_core.data.catalogue import DataSpec


@dataclass
class CocoImage:
    """One image of the JSON with its annotation.

    Args:
        id: its image id.
        file: ``file_name``.
        size: (height, width) as the JSON says, ``None`` where it does not.
        rows: (bbox, category id, crowd, area) of each annotation, unchecked, with the annotation's id first.
    """

    id: int
    file: str
    size: tuple[int, int] | None
    rows: list[tuple[Any, Any, Any, bool, Any]] = field(default_factory=list)


@lru_cache(maxsize=2)
def _parsed(path: str, stamp: tuple[int, int]) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = json.load(file)
    except RecursionError:
        raise DataError("The JSON is nested too deeply", where=path, mend="Give a COCO annotation file.") from None
    except ValueError as error:
        raise DataError(f"It is no JSON: {error}", where=path, mend="Give a COCO annotation file.") from None
    except OSError as error:
        raise DataError(f"It cannot be read: {error.strerror}", where=path, mend="Check the path.") from None
    if not isinstance(data, dict):
        raise DataError("The JSON is no object", where=path, mend="Give a COCO annotation file.")
    for key in ("images", "annotations", "categories"):
        if not isinstance(data.get(key), list) or not all(isinstance(e, dict) for e in data[key]):
            raise DataError(f"The JSON has no list {key!r}", where=path, mend="Give a COCO annotation file.")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A COCO annotation file with its three lists; raises ``DataError``."""
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(f"It cannot be read: {error.strerror}", where=str(path), mend="Check the path.") from None
    return _parsed(str(path), (state.st_size, state.st_mtime_ns))


def categories_of(path: Path) -> dict[int, str]:
    """Name by category id, sorted by id; raises ``DataError`` for ids that are no integers or stand there twice."""
    found: dict[int, str] = {}
    for category in read_json(path)["categories"]:
        number, name = category.get("id"), category.get("name")
        if isinstance(number, bool) or not isinstance(number, int) or not isinstance(name, str) or not name.strip():
            raise DataError(
                f"A category is {str(category)[:80]}", where=str(path), mend="Each needs an integer id and a name."
            )
        if number in found:
            raise DataError(f"Category id {number} stands there twice", where=str(path), mend="Keep one of them.")
        found[number] = name.strip()
    if not found:
        raise DataError("The JSON has no categories", where=str(path), mend="Give a COCO annotation file.")
    return dict(sorted(found.items()))


def merge_categories(spec: DataSpec, where: str) -> tuple[dict[int, str], dict[int, int]]:
    """Class names and category ids by class index, from all JSON files of a data set.

    Names in the YAML decide the order; otherwise category ids do.

    Raises:
        DataError: files that disagree about a category, or names that do not fit them.
    """
    found: dict[int, str] = {}
    for source in spec.splits.values():
        if source.kind != "coco":
            continue
        for number, name in categories_of(source.paths[0]).items():
            if found.setdefault(number, name) != name:
                raise DataError(
                    f"Category {number} is {found[number]!r} in one file and {name!r} here",
                    where=str(source.paths[0]),
                    mend="Use one numbering in all splits.",
                )
    found = dict(sorted(found.items()))
    if not spec.names:
        return dict(enumerate(found.values())), dict(enumerate(found))
    by_name = {name: number for number, name in found.items()}
    missing = [n for n in spec.names.values() if n not in by_name]
    extra = [n for n in by_name if n not in spec.names.values()]
    if missing or extra:
        raise DataError(
            f"names and the JSON's categories differ: {_some(missing)} not in the JSON, {_some(extra)} not in names",
            where=where,
            mend="Correct names, or leave it out: the JSON has the names.",
        )
    return dict(spec.names), {i: by_name[n] for i, n in spec.names.items()}


def images_of(path: Path, faults: list[Fault]) -> list[CocoImage]:
    """Every image of the JSON with its annotations, in the order of the file."""
    data = read_json(path)
    images: dict[Any, CocoImage] = {}
    for entry in data["images"]:
        number, name = entry.get("id"), entry.get("file_name")
        if isinstance(number, bool) or not isinstance(number, (int, str)) or not isinstance(name, str) or not name:
            faults.append(
                Fault("image missing", str(path), None, f"an image without id or file_name: {str(entry)[:60]}")
            )
            continue
        if number in images:
            faults.append(Fault("duplicate", str(path), None, f"image id {number} stands there twice"))
            continue
        sides = entry.get("height"), entry.get("width")
        known = all(isinstance(s, int) and s > 0 for s in sides)
        images[number] = CocoImage(number, name, sides if known else None)  # type: ignore[arg-type]
    for entry in data["annotations"]:
        owner = entry.get("image_id")
        image = images.get(owner) if isinstance(owner, (int, str)) else None
        if image is None:
            faults.append(Fault("unknown image", str(path), None, f"annotation {entry.get('id')}, image {owner}"))
            continue
        crowd = entry.get("iscrowd") in (1, True)
        image.rows.append((entry.get("id"), entry.get("bbox"), entry.get("category_id"), crowd, entry.get("area")))
    return list(images.values())


def judge_rows(
    image: CocoImage, size: tuple[int, int], indices: dict[int, int], path: str, faults: list[Fault]
) -> list[tuple[float, float, float, float, int, bool, float]]:
    """The good annotations of an image: x1 y1 x2 y2 in pixels, class index, crowd, area in square pixels.

    Args:
        size: (height, width) of the photo.
        indices: class index by category id.
        path: the JSON, for faults.
    """
    height, width = size
    kept, seen = [], set()
    for number, bbox, category, crowd, area in image.rows:
        detail = f"annotation {number} of image {image.file}: bbox {bbox}"[:160]
        if not isinstance(bbox, list) or len(bbox) != 4:
            faults.append(Fault("wrong number of fields", path, None, detail))
            continue
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in bbox):
            faults.append(Fault("not a number", path, None, detail))
            continue
        if isinstance(category, (list, dict)) or category not in indices:
            faults.append(Fault("bad class", path, None, f"annotation {number}: category {category!r}"))
            continue
        x, y, w, h = bbox
        if w <= 0 or h <= 0:
            faults.append(Fault("no area", path, None, detail))
            continue
        box = judge_box((x / width, y / height, (x + w) / width, (y + h) / height), path, None, detail, faults)
        if box is None:
            continue
        key = (x, y, w, h, category, crowd)
        if key in seen:
            faults.append(Fault("duplicate", path, None, detail))
            continue
        seen.add(key)
        x1, y1, x2, y2 = box[0] * width, box[1] * height, box[2] * width, box[3] * height
        good_area = isinstance(area, (int, float)) and math.isfinite(area) and area > 0
        own_area = float(area) if good_area else (x2 - x1) * (y2 - y1)
        kept.append((x1, y1, x2, y2, indices[category], crowd, own_area))
    return kept


def photo_folder(path: Path, root: Path, files: Iterable[str]) -> list[Path]:
    """Folders that ``file_name`` may be relative to, those that really hold the first images in front.

    Tried are the data set's ``path``, the JSON's folder and its parent, each also with ``images`` and with the split's
    name as the JSON's file name has it (``instances_val2017.json`` -> ``val2017``).
    """
    split = path.stem.split("_", 1)[-1]
    bases = list(dict.fromkeys([root, path.parent, path.parent.parent]))
    names = ["", "images", split, f"images/{split}"]
    folders = [base / name if name else base for base in bases for name in names]
    first = list(files)[:3]
    return sorted(folders, key=lambda f: -sum((f / name).is_file() for name in first))


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (" ..." if len(names) > 3 else "") if names else "none"


def forget() -> None:
    """Free the parsed files; those of large data sets take gigabytes."""
    _parsed.cache_clear()
