"""The fields of a data YAML about further pixels of a photo: masks for semantic segmentation, pairs for restoration."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.data.data_yaml import Places
from libreyolo_core.data.files import list_images
from libreyolo_core.data.labels import label_path
from libreyolo_core.data.masks import FOLDER, MaskReading, mask_path
from libreyolo_core.data.pairs import INPUTS, TARGETS, PairNames
from libreyolo_core.errors import DataError, suggestion
from libreyolo_core.targets import IGNORED

if TYPE_CHECKING:
    from libreyolo_core.data.catalogue import DataSpec

log = logging.getLogger("libreyolo")

BACKGROUND = "background"
"""The class that is added, last, where masks are drawn from polygons: what none of them covers."""
LOOKED_AT = 50
"""Images looked at to tell masks from polygons."""


def with_masks(spec: DataSpec, where: str, values: Mapping[str, Any], at: Places | None) -> DataSpec:
    """A semantic data set with its ``MaskReading``, and with the class ``background`` where masks are drawn from
    polygons.

    Raises:
        DataError: no names, more than 255 classes, or a field about masks that makes no sense.
    """
    if not spec.names:
        raise DataError("names is missing", where=where, mend="Add the class names, e.g. 'names: [road, tree]'.")
    place = at or Places(spec.path, {})
    given = values.get("masks_dir")
    if given is not None and (not isinstance(given, str) or not given.strip()):
        raise DataError(
            f"masks_dir is {given!r}", where=place("masks_dir"), mend="Give a folder, e.g. masks_dir: masks."
        )
    folder = os.path.normpath(given.strip().replace("\\", "/") if os.sep == "/" else given.strip()) if given else FOLDER
    names = dict(spec.names)
    polygons = given is None and _has_polygons(spec, folder)
    if polygons and names[len(names) - 1] != BACKGROUND:
        names[len(names)] = BACKGROUND
    if len(names) > IGNORED:
        raise DataError(
            f"There are {len(names)} classes; a mask can tell {IGNORED} apart"
            + (f", {BACKGROUND!r} included" if polygons else ""),
            where=where,
            mend="Merge or drop classes.",
        )
    mapping, palette = values.get("label_mapping"), values.get("palette")
    if mapping is not None and palette is not None:
        raise DataError(
            "label_mapping and palette are both given",
            where=place("palette"),
            mend="Keep one: palette for colours, label_mapping for values.",
        )
    if polygons and (mapping is not None or palette is not None):
        key = "palette" if mapping is None else "label_mapping"
        raise DataError(
            f"{key} is given, but there are only polygon labels, no masks",
            where=place(key),
            mend="Put the masks where the last folder 'images' of a path becomes 'masks', or remove the line.",
        )
    reading = MaskReading(
        len(names),
        mapping=() if mapping is None else _mapping(mapping, len(names), place),
        palette=() if palette is None else _palette(palette, names, place),
        polygons=polygons,
        folder=folder,
    )
    if polygons:
        log.info("%s: masks are drawn from polygon labels; what they leave is class %r", spec.source, BACKGROUND)
    return replace(spec, names=names, reading=reading)


def _has_polygons(spec: DataSpec, folder: str) -> bool:
    """Whether there are label files and no masks where masks would be."""
    source = spec.splits.get("train") or next(iter(spec.splits.values()))
    images = list_images(source, spec.path)[:LOOKED_AT]
    masks = [mask_path(image, spec.path, folder) for image in images]
    if any(
        os.path.isdir(os.path.dirname(m)) and os.path.dirname(m) != os.path.dirname(i) for m, i in zip(masks, images)
    ):
        return False
    return any(os.path.exists(label_path(image)) for image in images)


def _mapping(given: Any, classes: int, at: Places) -> tuple[tuple[int, int], ...]:
    """``label_mapping: {value in the file: class id}``."""
    where = at("label_mapping")
    if not isinstance(given, Mapping) or not given:
        raise DataError(f"label_mapping is {given!r}", where=where, mend="Write 'label_mapping: {7: 0, 8: 1}'.")
    found: dict[int, int] = {}
    for key, label in given.items():
        value = _whole(key)
        if value is None or not 0 <= value <= 65535:
            raise DataError(f"label_mapping has the value {key!r}", where=where, mend="A mask has values 0 to 65535.")
        if value in found:
            raise DataError(f"label_mapping has {value} twice", where=where, mend="Give every value once.")
        found[value] = _class_id(label, classes, f"label_mapping gives {value} the class", where)
    return tuple(sorted(found.items()))


def _palette(given: Any, names: dict[int, str], at: Places) -> tuple[tuple[int, int, int, int], ...]:
    """``palette: {class: [r, g, b]}`` by name or id, or a list of colours in the order of the names."""
    where = at("palette")
    if isinstance(given, list):
        if len(given) != len(names):
            raise DataError(
                f"palette has {len(given)} colours for {len(names)} classes",
                where=where,
                mend="Give one colour a class.",
            )
        given = dict(enumerate(given))
    if not isinstance(given, Mapping) or not given:
        raise DataError(f"palette is {given!r}", where=where, mend="Write 'palette: {road: [128, 64, 128]}'.")
    ids = {name: i for i, name in names.items()}
    found: dict[tuple[int, int, int], int] = {}
    for key, colour in given.items():
        if isinstance(key, str) and _whole(key) is None and key not in ids:
            raise DataError(f"palette has no class {key!r}", where=where, mend=suggestion(key, ids, what="classes"))
        label = ids[key] if key in ids else _class_id(key, len(names), "palette has the class", where)
        channels = [_whole(c) for c in colour] if isinstance(colour, (list, tuple)) else []
        if len(channels) != 3 or any(c is None or not 0 <= c <= 255 for c in channels):
            raise DataError(
                f"palette gives {key!r} the colour {colour!r}", where=where, mend="Write [r, g, b], 0 to 255."
            )
        red, green, blue = (int(c or 0) for c in channels)
        if found.setdefault((red, green, blue), label) != label:
            raise DataError(f"palette has the colour {colour} twice", where=where, mend="Give every class its own.")
    return tuple((*colour, label) for colour, label in found.items())


def _class_id(given: Any, classes: int, what: str, where: str) -> int:
    label = _whole(given)
    if label is None or not (0 <= label < classes or label == IGNORED):
        raise DataError(
            f"{what} {given!r}", where=where, mend=f"Classes are 0 to {classes - 1}, and {IGNORED} for ignored pixels."
        )
    return label


def _whole(value: Any) -> int | None:
    """An integer, also from text; ``None`` for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def with_pairs(spec: DataSpec, where: str, values: Mapping[str, Any], at: Places | None) -> DataSpec:
    """A restoration data set with its ``PairNames`` and its one class, ``image``.

    Raises:
        DataError: several classes, or a field about pairs that makes no sense.
    """
    place = at or Places(spec.path, {})
    if len(spec.names) > 1:
        raise DataError(
            f"names has {len(spec.names)} classes; restoring an image knows none", where=where, mend="Leave names out."
        )
    if values.get("target_dir") is not None and values.get("targets_dir") is not None:
        raise DataError(
            "target_dir and targets_dir are both given", where=place("targets_dir"), mend="Keep one, they are the same."
        )
    inputs = _folder_name(values, ("input_dir",), INPUTS, place)
    targets = _folder_name(values, ("target_dir", "targets_dir"), TARGETS, place)
    if inputs == targets:
        raise DataError(
            f"The degraded and the clean images are both in folders {inputs!r}",
            where=place("input_dir"),
            mend="Put them into folders of different names.",
        )
    suffix = values.get("target_stem_suffix")
    if suffix is not None and (not isinstance(suffix, (str, int)) or isinstance(suffix, bool) or "/" in str(suffix)):
        raise DataError(
            f"target_stem_suffix is {suffix!r}",
            where=place("target_stem_suffix"),
            mend="Give the end of the clean files' names, e.g. '_clean'.",
        )
    return replace(spec, names={0: "image"}, reading=PairNames(inputs, targets, str(suffix or "")))


def _folder_name(values: Mapping[str, Any], keys: tuple[str, ...], default: str, at: Places) -> str:
    key = next((k for k in keys if values.get(k) is not None), None)
    if key is None:
        return default
    name = values[key].strip().strip("/") if isinstance(values[key], str) else ""
    if not name or len(Path(name).parts) != 1 or name in (".", ".."):
        raise DataError(
            f"{key} is {values[key]!r}", where=at(key), mend=f"Give the name of a folder, e.g. {key}: {default}."
        )
    return name
