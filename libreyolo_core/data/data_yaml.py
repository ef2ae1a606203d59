"""The fields of a data YAML, each read strictly: an error names the value, the file, the line and the mend."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libreyolo_core.errors import DataError

log = logging.getLogger("libreyolo")

SPLITS = ("train", "val", "test")
KEYS = ("path", *SPLITS, "names", "nc", "download")
TASK_KEYS = {
    "semantic": ("masks_dir", "label_mapping", "palette"),
    "restore": ("input_dir", "target_dir", "targets_dir", "target_stem_suffix"),
}
"""Keys that only one task knows."""
TYPO = 0.72
"""Similarity from which an unknown key counts as a misspelt known one."""


class Places:
    """Names file and line of a key for errors."""

    def __init__(self, path: Path, lines: Mapping[str, int]) -> None:
        self.path, self.lines = path, lines

    def __call__(self, key: str) -> str:
        """``/data/my.yaml, line 2: train``."""
        return f"{self.path}, line {self.lines[key]}: {key}" if key in self.lines else str(self.path)


def check_keys(values: Mapping[str, Any], at: Places, task: str = "") -> None:
    """Misspelt keys are errors, foreign ones a warning: other tools write notes of their own into such files, and a
    file may serve several tasks."""
    known, foreign = (*KEYS, *TASK_KEYS.get(task, ())), []
    others = {key for keys in TASK_KEYS.values() for key in keys}
    for key in map(str, values):
        if key in known:
            continue
        close = [] if key in others else difflib.get_close_matches(key.lower(), known, n=1, cutoff=TYPO)
        if close:
            raise DataError(f"Unknown key {key!r}", where=at(key), mend=f"Did you mean {close[0]!r}?")
        foreign.append(key)
    if foreign:
        log.warning("%s: keys without a meaning here are ignored: %s", at.path, ", ".join(foreign))
    if not any(values.get(s) for s in SPLITS):
        raise DataError("No split is given", where=str(at.path), mend="Add a line such as 'train: images/train'.")


def class_names(values: Mapping[str, Any], at: Places) -> dict[int, str]:
    """Class names by index; empty when the YAML leaves them to the annotation."""
    count = _count(values["nc"], at) if values.get("nc") is not None else None
    given = values.get("names")
    if given is None:
        return {i: f"class{i}" for i in range(count or 0)}
    if isinstance(given, Mapping):
        pairs = [(_index(key, at), name) for key, name in given.items()]
    elif isinstance(given, list):
        pairs = list(enumerate(given))
    else:
        raise DataError(
            f"names is {given!r}, neither a list nor a mapping", where=at("names"), mend="Write 'names: [cat, dog]'."
        )
    names: dict[int, str] = {}
    for index, name in pairs:
        if index in names:
            raise DataError(f"Class {index} is named twice", where=at("names"), mend="Give every index once.")
        names[index] = _name(name, index, at)
    if not names:
        raise DataError("names is empty", where=at("names"), mend="Name at least one class.")
    gap = next((i for i in range(len(names)) if i not in names), None)
    if gap is not None:
        raise DataError(
            f"names has {len(names)} classes but none with index {gap}",
            where=at("names"),
            mend=f"Number the classes 0 to {len(names) - 1} without gaps.",
        )
    if count is not None and count != len(names):
        raise DataError(
            f"nc is {count} but names has {len(names)}", where=at("nc"), mend="Correct one of them, or leave nc out."
        )
    if len(set(names.values())) < len(names):
        by_name: dict[str, list[int]] = {}
        for index, name in sorted(names.items()):
            by_name.setdefault(name, []).append(index)
        same = [f"{n!r} ({', '.join(map(str, i))})" for n, i in by_name.items() if len(i) > 1]
        log.warning("%s: several classes have one name: %s", at("names"), ", ".join(same[:5]))
    return dict(sorted(names.items()))


def _count(value: Any, at: Places) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1_000_000:
        raise DataError(f"nc is {value!r}", where=at("nc"), mend="Give the number of classes, e.g. nc: 3.")
    return number


def _index(key: Any, at: Places) -> int:
    number = int(key) if isinstance(key, str) and key.strip().isdecimal() else key
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise DataError(
            f"names has the key {key!r}, which is no class index", where=at("names"), mend="Number the classes from 0."
        )
    return number


def _name(name: Any, index: int, at: Places) -> str:
    if isinstance(name, (bool, type(None))):
        raise DataError(
            f"The name of class {index} is {name!r}, not text",
            where=at("names"),
            mend="YAML reads words like yes, no, on, off and null as values: put the name in quotes.",
        )
    if isinstance(name, (list, dict)) or not str(name).strip():
        raise DataError(
            f"The name of class {index} is {name!r}", where=at("names"), mend="Give a name, in quotes where in doubt."
        )
    return str(name).strip()


def root_folder(values: Mapping[str, Any], at: Places) -> Path:
    """``path``, relative to the YAML's own folder; that folder where it is absent."""
    given = values.get("path")
    if given is None:
        return at.path.parent
    if not isinstance(given, str) or not given.strip():
        raise DataError(f"path is {given!r}", where=at("path"), mend="Give the data set's folder, e.g. path: .")
    return _under(at.path.parent, given.strip())


def split_paths(values: Mapping[str, Any], root: Path, at: Places) -> dict[str, tuple[Path, ...]]:
    """The entries of every split that is given, under ``root`` unless absolute."""
    splits = {}
    for name in SPLITS:
        given = values.get(name)
        if given is None or given == "" or given == []:
            continue
        entries = given if isinstance(given, list) else [given]
        if not all(isinstance(e, str) and e.strip() for e in entries):
            raise DataError(
                f"{name} is {given!r}", where=at(name), mend="Give a folder, a .txt list, or a list of those."
            )
        splits[name] = tuple(_under(root, entry.strip()) for entry in entries)
    return splits


def _under(root: Path, entry: str) -> Path:
    path = Path(entry.replace("\\", "/") if os.sep == "/" else entry).expanduser()
    return Path(os.path.normpath(path if path.is_absolute() else root / path))
