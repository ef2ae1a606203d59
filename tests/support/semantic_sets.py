"""What tests of masks share: a mask of four blocks, the scan of a set, and what a set is refused for."""

from __future__ import annotations

import numpy as np
import pytest

from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.labels import FAULTS
from libreyolo_core.data.scan import scan_semantic
from libreyolo_core.errors import DataError

SIZE = (40, 64)
NAMES = ["road", "tree", "sky"]


def blocks(height: int = 40, width: int = 64, values=(0, 1, 2, 255)) -> np.ndarray:
    """A quarter of the mask for each of four values."""
    mask = np.zeros((height, width), np.uint8)
    for i, value in enumerate(values):
        y, x = i // 2 * height // 2, i % 2 * width // 2
        mask[y : y + height // 2, x : x + width // 2] = value
    return mask


def scan(path, split="train", **options):
    return scan_semantic(load_data(path, "semantic"), split, **options)


def kinds(found) -> dict[str, int]:
    return {k: n for k, n in found.counts.items() if k in FAULTS}


def refused(path, *parts: str) -> str:
    with pytest.raises(DataError) as caught:
        load_data(path, "semantic")
    text = str(caught.value)
    assert "\n" not in text and all(p in text for p in parts), text
    return text
