"""Object detection: boxes with classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import BaseTask, Evaluator
from libreyolo_core.tasks.detect_eval import METRICS, DetectEvaluator
from libreyolo_core.tasks.postprocess import postprocess, to_host
from libreyolo_core.tasks.thresholds import only

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


class DetectTask(BaseTask):
    """Boxes with classes; fitness is COCO's AP over IoU 0.50 to 0.95."""

    name = "detect"
    fitness = "metrics/mAP50-95"
    metrics = METRICS
    counts_objects = True

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        from libreyolo_core.data.scan import scan_detect

        return scan_detect(spec, split, strict=strict)

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        from libreyolo_core.data.dataset import DetectSet

        return DetectSet(scan, sheet.input, seed=seed, cache=cache)

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        from libreyolo_core.data.dataset import collate_detect

        return collate_detect(samples, sheet.input)

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        _refuse_suppression(sheet, thresholds)
        return DetectEvaluator(scan, sheet, names, **thresholds)

    def results(
        self,
        predictions: Predictions,
        photos: list[np.ndarray],
        placements: list[Placement],
        paths: list[str],
        sheet: TaskSheet,
        names: dict[int, str],
        **thresholds: Any,
    ) -> list[Results]:
        """One ``Results`` with ``boxes`` per photo. ``thresholds``: ``conf``, ``iou``, ``max_det``, ``classes``,
        ``agnostic``; ``None`` means the sheet's."""
        from libreyolo_core.results import Boxes, Results

        known = ("conf", "iou", "max_det", "classes", "agnostic")
        thresholds = only(thresholds, known, task="detect", noun="a detector", mend="Leave it out.")
        _refuse_suppression(sheet, thresholds)
        found = to_host(postprocess(predictions, sheet.post, placements=placements, **thresholds))
        results = []
        for d, photo, path in zip(found, photos, paths, strict=True):
            data = torch.cat([d.boxes, d.scores[:, None], d.labels[:, None].float()], dim=1)  # [n, 6]
            boxes = Boxes(data, photo.shape[:2])
            results.append(Results(np.ascontiguousarray(photo[..., ::-1]), path, names, boxes=boxes))
        return results

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        from libreyolo_core.tasks.examples import box_batch

        return box_batch(nc, size=size, counts=counts, seed=seed)

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        from libreyolo_core.pictures.batch import box_batch

        box_batch(batch, names, path, sheet.input.colour)

    def plot_labels(self, scan: Scan, names: dict[int, str], path: Path) -> None:
        from libreyolo_core.pictures.labels import box_labels

        box_labels(scan, names, path)


def _refuse_suppression(sheet: TaskSheet, thresholds: dict[str, Any]) -> None:
    """Refuse the thresholds of non-maximum suppression where a family has none."""
    for name in ("iou", "agnostic"):
        value = thresholds.get(name)
        if value is not None and value is not False and not sheet.post.nms:
            raise ConfigError(
                f"{name}={value!r} has no meaning for a family without non-maximum suppression",
                where=f"argument {name}",
                mend="Leave it out: each of its boxes stands for one object.",
            )
