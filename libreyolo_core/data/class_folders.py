"""Classification data: one folder per class, the same names under ``train`` and ``val``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from libreyolo_core.errors import DataError, nearest

if TYPE_CHECKING:
    from libreyolo_core.data.catalogue import DataSpec, Source


def folder_names(spec: DataSpec, where: str) -> dict[int, str]:
    """Class names by index: the sorted folders of ``train`` (of the first split there is, without it).

    Raises:
        DataError: no class folders, names in the YAML that differ from them, or a class in another split that
            ``train`` does not have.
    """
    first = "train" if "train" in spec.splits else next(iter(spec.splits))
    found = class_folders(spec.splits[first])
    if not found:
        raise DataError(
            f"There is no class folder in {spec.splits[first].paths[0]}",
            where=where,
            mend="Put the images into one folder per class: train/<class>/a.jpg.",
        )
    if spec.names and set(spec.names.values()) != set(found):
        missing = [n for n in spec.names.values() if n not in found]
        extra = [n for n in found if n not in spec.names.values()]
        raise DataError(
            f"names and the class folders differ: without a folder {missing[:3]}, without a name {extra[:3]}",
            where=where,
            mend="Correct names, or leave it out: the folders have the names.",
        )
    names = spec.names or dict(enumerate(found))
    for split, source in spec.splits.items():
        unknown = [n for n in class_folders(source) if n not in names.values()]
        if unknown:
            close = nearest(unknown[0], names.values(), count=1)
            raise DataError(
                f"The {split} split has classes that train does not have: {', '.join(map(repr, unknown[:5]))}",
                where=str(source.paths[0] / unknown[0]),
                mend=f"Did you mean {close[0]!r}?" if close else "Add them to train, or remove them.",
            )
    return names


def class_folders(source: Source) -> list[str]:
    """The sorted names of the class folders of a split."""
    if not source.paths[0].is_dir():
        raise DataError(
            f"{source.paths[0]} is no folder", where=source.where, mend="Give the folder that holds the class folders."
        )
    return sorted(
        {e.name for path in source.paths for e in os.scandir(path) if e.is_dir() and not e.name.startswith(".")}
    )


def class_of(image: str, roots: tuple[Path, ...]) -> str:
    """The class folder an image lies in, "" for none."""
    for root in roots:
        try:
            parts = Path(image).relative_to(root).parts
        except ValueError:
            continue
        return parts[0] if len(parts) > 1 else ""
    return ""
