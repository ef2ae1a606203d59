"""Restoration data: pairs of a degraded and a clean image of the same size, found by their names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from libreyolo_core.data.decode import SUFFIXES

INPUTS, TARGETS = "inputs", "targets"


@dataclass(frozen=True)
class PairNames:
    """How the clean image of a degraded one is found.

    Args:
        inputs: name of the folder that holds degraded images, on any level.
        targets: name of the folder that stands in its place for clean ones.
        suffix: what the clean file's name has after the degraded one's stem.
    """

    inputs: str = INPUTS
    targets: str = TARGETS
    suffix: str = ""


def clean_path(image: str, names: PairNames) -> str | None:
    """The clean image of a degraded one: the last folder ``inputs`` of its path becomes ``targets``, the stem gets the
    suffix, and the ending is the same or, where there is no such file, that of any other image format.

    Returns:
        The path; of the same ending where there is none. ``None`` for an image that lies in no folder ``inputs``, or
        in a folder ``targets`` below one: that is no degraded image.
    """
    path = Path(image)
    parts = list(path.parts)
    at = next((i for i in range(len(parts) - 2, -1, -1) if parts[i] in (names.inputs, names.targets)), None)
    if at is None or parts[at] != names.inputs:
        return None
    parts[at] = names.targets
    stem = str(Path(*parts).with_name(path.stem + names.suffix))
    endings = dict.fromkeys((path.suffix, path.suffix.lower(), *sorted(SUFFIXES)))
    return next((stem + e for e in endings if os.path.exists(stem + e)), stem + path.suffix)
