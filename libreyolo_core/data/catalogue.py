"""What ``data=`` may be: a YAML file, a registered name, a folder, or a pair of COCO JSON files.

``load_data`` turns any of them into one ``DataSpec``. Nothing is scanned here; files are only found.
To make a data set available by name, register a function that returns its path with the hook ``libreyolo_datasets``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.data.data_yaml import SPLITS, Places, check_keys, class_names, root_folder, split_paths
from libreyolo_core.data.safe_yaml import load_yaml
from libreyolo_core.errors import DataError, UnknownNameError, UsageError, nearest

if TYPE_CHECKING:
    from libreyolo_core.data.masks import MaskReading
    from libreyolo_core.data.pairs import PairNames

log = logging.getLogger("libreyolo")


@dataclass(frozen=True)
class Source:
    """Where the images of a split come from.

    Args:
        kind: ``images`` (folders, .txt lists), ``coco`` (one JSON file), ``classes`` (a folder per class), ``masks``
            (images with masks or polygons) or ``pairs`` (degraded and clean images).
        paths: absolute paths.
        where: how to name it in errors, e.g. ``my.yaml, line 2: train``.
    """

    kind: str
    paths: tuple[Path, ...]
    where: str = ""


@dataclass(frozen=True)
class DataSpec:
    """A data set that was found.

    Args:
        path: its root folder.
        names: class names by index, without gaps.
        splits: what was given for ``train``, ``val`` and ``test``.
        task: the task it was asked for.
        source: what the user gave.
        categories: COCO category id by class index, where the annotation is COCO JSON.
        reading: how masks are found and read (semantic), or pairs found (restore).
    """

    path: Path
    names: dict[int, str]
    splits: dict[str, Source]
    task: str
    source: str
    categories: dict[int, int] | None = field(default=None, repr=False)
    reading: MaskReading | PairNames | None = None

    def split(self, name: str) -> Source:
        """One split; raises ``DataError`` that names those there are."""
        if name not in self.splits:
            raise DataError(
                f"There is no {name!r} split",
                where=f"data {self.source}",
                mend=f"It has: {', '.join(self.splits) or 'none'}. Add a line '{name}: ...' to the data YAML.",
            )
        return self.splits[name]


def load_data(data: str | os.PathLike[str], task: str) -> DataSpec:
    """Find a data set.

    Args:
        data: YAML file, registered name, folder, or ``"train.json,val.json"``.
        task: ``detect``, ``classify``, ``semantic``, ``restore``, ``point`` ...

    Raises:
        DataError: missing or contradictory; the error names value, file, line and the mend.
        UnknownNameError: neither a path nor a registered name.
    """
    text = os.fspath(data).strip() if isinstance(data, (str, os.PathLike)) else ""
    if not text or "\0" in text:
        raise UsageError(f"data={data!r} is no data set", where="argument data", mend="Give a YAML file, e.g. my.yaml.")
    parts = [p.strip() for p in text.split(",")]
    if len(parts) == 2 and all(p.lower().endswith(".json") for p in parts):
        return _from_pair(parts, task, text)
    path = Path(text).expanduser()
    if not path.exists():
        path = _registered(text)
    return _from_path(Path(os.path.abspath(path)), task, text)


def _from_path(path: Path, task: str, text: str) -> DataSpec:
    if path.is_dir():
        return _from_folder(path, task, text)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path, task, text)
    if path.suffix.lower() == ".json":
        raise DataError(
            f"{text!r} is one JSON file", where="argument data", mend='Give the pair: data="train.json,val.json".'
        )
    raise DataError(
        f"{text!r} is a {path.suffix or 'plain'} file, no data set",
        where="argument data",
        mend="Give a YAML file, a folder, a registered name, or two COCO JSON files.",
    )


def _registered(name: str) -> Path:
    """The path of a data set that a plugin knows by name."""
    if "/" in name or "\\" in name or Path(name).suffix.lower() in (".yaml", ".yml", ".json", ".txt"):
        folder = Path(name).expanduser().parent
        beside = sorted(p.name for p in folder.glob("*.y*ml"))[:200] if folder.is_dir() else []
        close = nearest(Path(name).name, beside)
        raise DataError(
            f"{name!r} does not exist",
            where=f"looked for {Path(name).expanduser().absolute()}",
            mend=f"Did you mean {' or '.join(repr(c) for c in close)}?" if close else "Check the path.",
        )
    from libreyolo_core.registry import registry

    try:
        function = registry().dataset(name)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{name!r} is neither a file, a folder, nor a registered data set",
            where=f"looked for {Path(name).absolute()}",
            mend=error.mend or "Give a YAML file.",
        ) from None
    return Path(os.fspath(function()))


def _from_yaml(path: Path, task: str, text: str) -> DataSpec:
    values, lines = load_yaml(path)
    at = Places(path, lines)
    check_keys(values, at, task)
    names, root = class_names(values, at), root_folder(values, at)
    paths = split_paths(values, root, at)
    if values.get("download") and not _all_there(paths):
        from libreyolo_core.data.download import fetch_data_set

        root = _inner_root(fetch_data_set(values["download"], path.stem, at("download")), values, at)
        paths = split_paths(values, root, at)
    for name, of_split in paths.items():
        missing = [p for p in of_split if not p.exists()]
        if missing:
            raise DataError(
                f"The {name} split of {text} is not there: looked for {', '.join(map(str, missing[:3]))}",
                where=at(name),
                mend="Correct it or 'path': a split is looked for under 'path', and 'path' beside the YAML.",
            )
    splits = {name: Source(_kind(p, task, at(name)), p, at(name)) for name, p in paths.items()}
    return _named(DataSpec(root, names, splits, task, text), at("names"), values, at)


def _all_there(paths: Mapping[str, tuple[Path, ...]]) -> bool:
    return all(p.exists() for of_split in paths.values() for p in of_split)


def _inner_root(folder: Path, values: Mapping[str, Any], at: Places) -> Path:
    """Archives often wrap everything in one folder: the first place under which all splits are found."""
    inner = sorted(p for p in folder.iterdir() if p.is_dir())
    return next((root for root in (folder, *inner) if _all_there(split_paths(values, root, at))), folder)


KINDS = {"classify": "classes", "semantic": "masks", "restore": "pairs"}
"""``Source.kind`` of the tasks that know no boxes."""
_FORMS = {
    "classify": "Give folders of classes to classify.",
    "semantic": "Give images with masks, or with polygon labels.",
    "restore": "Give images in folders 'inputs' and 'targets'.",
}


def _kind(paths: tuple[Path, ...], task: str, where: str) -> str:
    if not any(p.suffix.lower() == ".json" for p in paths) or task == "classify":
        return KINDS.get(task, "images")
    if task in KINDS:
        raise DataError("COCO JSON holds boxes", where=where, mend=_FORMS[task])
    if len(paths) > 1:
        raise DataError("A COCO JSON file stands in a list", where=where, mend="Give one JSON file per split.")
    return "coco"


def _from_pair(parts: list[str], task: str, text: str) -> DataSpec:
    if task in KINDS:
        raise DataError("COCO JSON holds boxes", where="argument data", mend=_FORMS[task])
    splits = {}
    for name, part in zip(("train", "val"), parts, strict=True):
        path = Path(part).expanduser().absolute()
        if not path.is_file():
            raise DataError(f"{part!r} does not exist", where=f"looked for {path}", mend="Check the path.")
        splits[name] = Source("coco", (path,), str(path))
    return _named(DataSpec(splits["train"].paths[0].parent, {}, splits, task, text), f"data {text}")


def _from_folder(folder: Path, task: str, text: str) -> DataSpec:
    yamls = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml") and p.is_file())
    if task == "classify" and (folder / "train").is_dir():
        return _named(DataSpec(folder, {}, _folders(folder, "classes"), task, text), str(folder))
    if len(yamls) == 1:
        return _from_yaml(yamls[0], task, text)
    if len(yamls) > 1:
        raise DataError(
            f"The folder {text!r} has several YAML files: {', '.join(p.name for p in yamls[:5])}",
            where="argument data",
            mend=f"Name one, e.g. data={yamls[0]}.",
        )
    if task == "restore" and (folder / "train").is_dir():
        return _named(DataSpec(folder, {}, _folders(folder, "pairs"), task, text), str(folder))
    if task in ("classify", "restore"):
        inside = "<class>/" if task == "classify" else "inputs/ and targets/"
        raise DataError(
            f"The folder {text!r} has no folder train",
            where=str(folder),
            mend=f"Put the images into train/{inside}, and those to validate on into val/.",
        )
    if not (folder / "images").is_dir():
        raise DataError(
            f"The folder {text!r} has neither a data YAML nor a folder images",
            where=str(folder),
            mend=f"Add a YAML with train, val and names, or folders images/ and {_annotation(task)}/.",
        )
    return _without_yaml(folder, task, text)


def _folders(parent: Path, kind: str) -> dict[str, Source]:
    return {s: Source(kind, (parent / s,), str(parent / s)) for s in SPLITS if (parent / s).is_dir()}


def _annotation(task: str) -> str:
    return "masks" if task == "semantic" else "labels"


def _without_yaml(folder: Path, task: str, text: str) -> DataSpec:
    """``images/`` and ``labels/`` (or ``masks/``) alone: names from ``classes.txt``, else numbered as far as the labels
    go. What the values of masks mean cannot be guessed."""
    images, kind = folder / "images", KINDS.get(task, "images")
    splits = _folders(images, kind) or {"train": Source(kind, (images,), str(images))}
    places = [folder / "classes.txt", *(folder / n / "classes.txt" for n in ("labels", "masks"))]
    listed = next((p for p in places if p.is_file()), None)
    if listed is None and task == "semantic":
        raise DataError(
            f"No class of the folder {text!r} has a name",
            where=f"looked for {places[0]}",
            mend="Write one name a line into it, in the order of the class ids, or add a YAML.",
        )
    if listed:
        lines = listed.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        names = dict(enumerate(line.strip() for line in lines if line.strip()))
    else:
        from libreyolo_core.data.labels import highest_class

        names = {i: f"class{i}" for i in range(highest_class(folder / "labels") + 1)}
        log.warning(
            "%s names no classes; they are called class0 to class%d. A data YAML names them.", folder, len(names) - 1
        )
    if not names:
        raise DataError(
            f"No class is known of the folder {text!r}: there is no label in {folder / 'labels'}",
            where=str(listed or folder),
            mend="Add a YAML with train, val and names, and the labels.",
        )
    return _named(DataSpec(folder, names, splits, task, text), str(listed or folder))


def _named(spec: DataSpec, where: str, values: Mapping[str, Any] | None = None, at: Places | None = None) -> DataSpec:
    """The data set with the class names that only its annotation has, and with how its further pixels are read;
    ``where`` is where names would be given, ``values`` what the YAML holds."""
    if spec.task == "classify":
        from libreyolo_core.data.class_folders import folder_names

        return replace(spec, names=folder_names(spec, where))
    if spec.task in ("semantic", "restore"):
        from libreyolo_core.data.layer_yaml import with_masks, with_pairs

        return (with_masks if spec.task == "semantic" else with_pairs)(spec, where, values or {}, at)
    if any(s.kind == "coco" for s in spec.splits.values()):
        from libreyolo_core.data.coco_json import merge_categories

        names, categories = merge_categories(spec, where)
        return replace(spec, names=names, categories=categories)
    if not spec.names:
        raise DataError("names is missing", where=where, mend="Add the class names, e.g. 'names: [cat, dog]'.")
    return spec
