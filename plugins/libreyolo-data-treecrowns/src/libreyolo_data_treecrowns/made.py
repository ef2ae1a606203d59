"""Folders made from the photos at their first use: in the cache directory, complete or not there, always the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.download import cache_dir
from libreyolo_core.data.scan import ImageRecord, scan_detect


def made_once(name: str, version: int, write: Callable[[Path], None]) -> Path:
    """The folder ``<name>-<version>`` of the cache directory; ``write(folder)`` fills it where it is not there yet."""
    folder = cache_dir() / "datasets" / f"{name}-{version}"
    if folder.is_dir():
        return folder
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        write(aside)
        try:
            os.replace(aside, folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def photos_of(photos: Path) -> dict[str, list[ImageRecord]]:
    """The photos with their boxes, by split."""
    spec = load_data(photos / "treecrowns.yaml", "detect")
    return {split: scan_detect(spec, split).images for split in ("train", "val")}
