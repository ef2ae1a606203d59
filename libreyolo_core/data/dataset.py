"""The data set of every task; each answers a ``SampleRequest`` as ``PhotoSet`` does, and has its ``collate_...``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from libreyolo_core.data.batch import Sample, SampleRequest
from libreyolo_core.data.collate import collate_classify, collate_detect, collate_restore, collate_semantic
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.masks import MaskReading, read_mask
from libreyolo_core.data.photo_set import PhotoSet
from libreyolo_core.data.scan_result import Scan
from libreyolo_core.family import Input

__all__ = [
    "ClassifySet",
    "DetectSet",
    "PhotoSet",
    "PointSet",
    "RestoreSet",
    "SemanticSet",
    "collate_classify",
    "collate_detect",
    "collate_restore",
    "collate_semantic",
]

ZOOM_RESERVE = 2.0
"""Photos for semantic segmentation keep a short side of so many inputs, so that zooming in that far loses no detail."""


class DetectSet(PhotoSet):
    """Photos with boxes."""


class PointSet(PhotoSet):
    """Photos with boxes, of which a family marks the centres; collated by ``collate_detect``."""


class ClassifySet(PhotoSet):
    """Photos with one class each."""

    def _lost(self, before: Sample, after: Sample) -> bool:
        return False

    def __getitem__(self, request: SampleRequest) -> Sample:
        sample = super().__getitem__(request)
        return replace(sample, extra={**sample.extra, "classes": len(self.names)})


class SemanticSet(PhotoSet):
    """Photos with the layer ``mask``, uint8 [H, W]: class of every pixel, 255 where nothing is known. Arguments as
    ``PhotoSet``."""

    channels = {"mask": 1}

    def __init__(self, scan: Scan, rule: Input, *, seed: int = 0, cache: str = "") -> None:
        super().__init__(scan, rule, seed=seed, cache=cache)
        self.reading = scan.reading if isinstance(scan.reading, MaskReading) else MaskReading(len(scan.names))

    def read_layer(self, name: str, index: int) -> np.ndarray:
        height, width = self.sizes[index].tolist()
        return read_mask(str(self.layer_paths[name][index]), (height, width), self.reading)

    def layer_facts(self) -> object:
        return self.reading

    def _evaluates_whole(self) -> bool:
        return True  # a kept photo of twice the input would be interpolated twice

    def _kept_shape(self, index: int, canvas: tuple[int, int]) -> tuple[int, int]:
        height, width = self.sizes[index].tolist()
        short, least = min(height, width), round(ZOOM_RESERVE * min(canvas))
        if short <= least:
            return height, width
        return round(height * least / short), round(width * least / short)


class RestoreSet(PhotoSet):
    """Degraded photos with the layer ``clean``, uint8 RGB [H, W, 3], the same without the damage."""

    channels = {"clean": 3}

    def read_layer(self, name: str, index: int) -> np.ndarray:
        return read_image(str(self.layer_paths[name][index]))
