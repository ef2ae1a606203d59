"""How a split of each format is scanned: which images there are, and what a look at one of them finds.

To add a format, write a function ``(spec, split) -> Job`` and enter it in ``JOBS`` under its ``Source.kind``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from libreyolo_core.data import coco_json
from libreyolo_core.data.catalogue import DataSpec
from libreyolo_core.data.class_folders import class_folders, class_of
from libreyolo_core.data.decode import check_image
from libreyolo_core.data.files import list_images
from libreyolo_core.data.labels import Fault, label_path, read_labels
from libreyolo_core.data.masks import MaskReading, judge_mask, mask_path
from libreyolo_core.data.pairs import PairNames, clean_path
from libreyolo_core.data.scan_result import ImageRecord, Scan
from libreyolo_core.errors import ImageError

Look = Callable[[str], "tuple[ImageRecord | None, list[Fault]]"]


@dataclass
class Job:
    """What there is to look at, and how.

    Args:
        found: takes the results; holds what was wrong with the list of images itself.
        paths: the images.
        look: judges one image; safe to call from several threads.
        involved: every file that the result depends on.
        ids: COCO image id by path.
        done: called once all are judged.
    """

    found: Scan
    paths: list[str]
    look: Look
    involved: list[str]
    ids: dict[str, Any] = field(default_factory=dict)
    done: Callable[[], object] = lambda: None


def _empty(spec: DataSpec, split: str) -> Scan:
    source = spec.split(split)
    return Scan(
        split,
        [],
        dict(spec.names),
        task=spec.task,
        where=source.where or f"data {spec.source}",
        looked_for=[str(p) for p in source.paths[:3]],
        reading=spec.reading,
    )


def _size_of(path: str) -> tuple[tuple[int, int] | None, list[Fault]]:
    """Size of a complete image; otherwise why it is none."""
    try:
        return check_image(path), []
    except (ImageError, OSError) as error:
        if not os.path.exists(path):
            return None, [Fault("image missing", path)]
        reason = error.problem if isinstance(error, ImageError) else str(error)
        return None, [Fault("image unreadable", path, None, reason)]


def text_job(spec: DataSpec, split: str) -> Job:
    found = _empty(spec, split)
    paths, owner = _annotated(spec, split, label_path, found)
    classes = len(spec.names)

    def look(path: str) -> tuple[ImageRecord | None, list[Fault]]:
        size, faults = _size_of(path)
        if size is None:
            return None, faults
        label = label_path(path)
        rows = read_labels(label, classes)
        if rows is None:
            return _record(path, size, np.zeros((0, 4)), np.zeros(0, np.int64)), [Fault("label missing", label)]
        return _record(path, size, rows.boxes, rows.labels), rows.faults

    return Job(found, paths, look, [*paths, *owner])


def _annotated(
    spec: DataSpec, split: str, place: Callable[[str], str], found: Scan
) -> tuple[list[str], dict[str, str]]:
    """The images of a split, and the owner of each annotation; an annotation that two images share has the first."""
    paths: list[str] = []
    owner: dict[str, str] = {}
    for path in list_images(spec.split(split), spec.path):
        annotation = place(path)
        if owner.setdefault(annotation, path) == path:
            paths.append(path)
        else:
            found.faults.append(Fault("shared label", path, None, f"{annotation} belongs to {owner[annotation]}"))
    found.looked_for = (paths or found.looked_for)[:3]
    found.label_paths = list(owner)[:3]
    return paths, owner


def _record(path: str, size: tuple[int, int], normalised: np.ndarray, labels: np.ndarray) -> ImageRecord:
    height, width = size
    return ImageRecord(path, size, (normalised * [width, height, width, height]).astype(np.float32), labels)


def class_job(spec: DataSpec, split: str) -> Job:
    source = spec.split(split)
    found = _empty(spec, split)
    index = {name: i for i, name in spec.names.items()}
    paths, labels = [], {}
    for path in list_images(source, spec.path):
        name = class_of(path, source.paths)
        if name in index:
            paths.append(path)
            labels[path] = index[name]
        else:
            found.faults.append(Fault("outside a class folder", path))
    used = set(labels.values())
    for name in class_folders(source):
        if index.get(name) not in used:
            found.faults.append(Fault("empty class folder", str(source.paths[0] / name)))
    found.looked_for = (paths or [str(source.paths[0] / n / "*.jpg") for n in index])[:3]

    def look(path: str) -> tuple[ImageRecord | None, list[Fault]]:
        size, faults = _size_of(path)
        if size is None:
            return None, faults
        return ImageRecord(path, size, np.zeros((0, 4), np.float32), np.array([labels[path]])), []

    return Job(found, paths, look, paths)


def mask_job(spec: DataSpec, split: str) -> Job:
    found, reading = _empty(spec, split), spec.reading
    assert isinstance(reading, MaskReading)

    def place(path: str) -> str:
        return label_path(path) if reading.polygons else mask_path(path, spec.path, reading.folder)

    paths, owner = _annotated(spec, split, place, found)

    def look(path: str) -> tuple[ImageRecord | None, list[Fault]]:
        size, faults = _size_of(path)
        if size is None:
            return None, faults
        place_of = place(path)
        if not reading.polygons and not os.path.exists(place_of):
            return None, [Fault("mask missing", place_of)]
        try:
            mask, pixels, faults = judge_mask(place_of, size, reading)
        except (ImageError, OSError) as error:
            return None, [Fault("mask unreadable", place_of, None, getattr(error, "problem", str(error)))]
        if mask.shape != size:
            return None, [Fault("size mismatch", place_of, None, _sides("mask", mask.shape, size))]
        if not pixels.any():
            return None, [*faults, Fault("mask ignored", place_of)]
        record = ImageRecord(path, size, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        record.layers, record.pixels = {"mask": place_of}, pixels
        return record, faults

    return Job(found, paths, look, [*paths, *owner])


def pair_job(spec: DataSpec, split: str) -> Job:
    found, names = _empty(spec, split), spec.reading
    assert isinstance(names, PairNames)
    clean = {path: c for path in list_images(spec.split(split), spec.path) if (c := clean_path(path, names))}
    paths = list(clean)
    found.looked_for = (paths or [os.path.join(p, names.inputs, "*") for p in found.looked_for])[:3]
    found.label_paths = list(clean.values())[:3]

    def look(path: str) -> tuple[ImageRecord | None, list[Fault]]:
        size, faults = _size_of(path)
        if size is None:
            return None, faults
        if not os.path.exists(clean[path]):
            return None, [Fault("clean image missing", clean[path])]
        clean_size, faults = _size_of(clean[path])
        if clean_size is None:
            return None, [Fault("clean image unreadable", f.path, None, f.detail) for f in faults]
        if clean_size != size:
            return None, [Fault("size mismatch", clean[path], None, _sides("clean", clean_size, size))]
        record = ImageRecord(path, size, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        record.layers = {"clean": clean[path]}
        return record, []

    return Job(found, paths, look, [*paths, *clean.values()])


def _sides(what: str, size: tuple[int, ...], photo: tuple[int, int]) -> str:
    return f"{what} {size[1]} x {size[0]}, image {photo[1]} x {photo[0]} as shown"


def coco_job(spec: DataSpec, split: str) -> Job:
    json = spec.split(split).paths[0]
    found = _empty(spec, split)
    found.category_ids = dict(spec.categories or {})
    indices = {number: i for i, number in found.category_ids.items()}
    by_path: dict[str, coco_json.CocoImage] = {}
    images = coco_json.images_of(json, found.faults)
    folders = coco_json.photo_folder(json, spec.path, (i.file for i in images))
    for image in images:
        path = os.path.normpath(folders[0] / image.file)
        if by_path.setdefault(path, image) is not image:
            found.faults.append(Fault("duplicate", str(json), None, f"file {image.file} is listed twice"))
    found.looked_for = (list(by_path) or found.looked_for)[:3]
    found.label_paths = [str(json)]

    def look(path: str) -> tuple[ImageRecord | None, list[Fault]]:
        size, faults = _size_of(path)
        image = by_path[path]
        if size is None:
            return None, faults
        if image.size is not None and image.size != size:
            sides = f"{image.size[1]} x {image.size[0]} in {json.name}, {size[1]} x {size[0]} on the disk"
            return None, [Fault("size mismatch", path, None, sides)]
        rows = coco_json.judge_rows(image, size, indices, str(json), faults)
        return _coco_record(path, size, rows), faults

    ids = {path: image.id for path, image in by_path.items()}
    return Job(found, list(by_path), look, [str(json), *by_path], ids, coco_json.forget)


def _coco_record(path: str, size: tuple[int, int], rows: Iterable[tuple]) -> ImageRecord:
    table = list(rows)
    boxes = np.array([r[:4] for r in table], dtype=np.float32).reshape(-1, 4)
    labels = np.array([r[4] for r in table], dtype=np.int64)
    crowd = np.array([r[5] for r in table], dtype=bool)
    areas = np.array([r[6] for r in table], dtype=np.float32)
    return ImageRecord(path, size, boxes, labels, crowd if crowd.any() else None, areas)


JOBS = {"images": text_job, "classes": class_job, "coco": coco_job, "masks": mask_job, "pairs": pair_job}
