"""Points: the centres of objects with their classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import BaseTask, Evaluator
from libreyolo_core.tasks.peaks import decode
from libreyolo_core.tasks.point_eval import METRICS, PointEvaluator
from libreyolo_core.tasks.thresholds import only

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


class PointTask(BaseTask):
    """Object centres with classes; fitness is F1 at the best confidence and radius."""

    name = "point"
    fitness = "metrics/F1"
    metrics = METRICS
    counts_objects = True

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        from libreyolo_core.data.scan import scan_detect

        return scan_detect(spec, split, strict=strict)

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        from libreyolo_core.data.dataset import PointSet

        return PointSet(scan, sheet.input, seed=seed, cache=cache)

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        from libreyolo_core.data.dataset import collate_detect

        return collate_detect(samples, sheet.input)

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        """``thresholds``: ``conf`` (instead of the sweep), ``max_det``, ``radius`` (instead of 1 and 2)."""
        return PointEvaluator(scan, sheet, names, **_known(thresholds, ("conf", "max_det", "radius")))

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
        """One ``Results`` with ``points`` per photo. ``thresholds``: ``conf``, ``max_det``, ``classes``, ``radius``;
        ``None`` means the sheet's."""
        from libreyolo_core.results import Points, Results

        post = sheet.post
        chosen: dict[str, Any] = {"conf": post.conf, "max_det": post.max_det, "radius": post.radius}
        chosen |= _known(thresholds, ("conf", "max_det", "classes", "radius"))
        results = []
        for peaks, photo, path in zip(decode(predictions, placements, **chosen), photos, paths, strict=True):
            data = np.concatenate([peaks.xy, peaks.scores[:, None], peaks.labels[:, None]], axis=1)  # [n, 4]
            points = Points(torch.from_numpy(data.astype(np.float32)), photo.shape[:2])
            results.append(Results(np.ascontiguousarray(photo[..., ::-1]), path, names, points=points))
        return results

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        from libreyolo_core.tasks.examples import box_batch

        return box_batch(nc, size=size, counts=counts, seed=seed)

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        from libreyolo_core.pictures.batch import point_batch

        point_batch(batch, names, path, sheet.input.colour)

    def plot_labels(self, scan: Scan, names: dict[int, str], path: Path) -> None:
        from libreyolo_core.pictures.labels import box_labels

        box_labels(scan, names, path)


def _known(thresholds: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return only(
        thresholds,
        known,
        task="point",
        noun="a point model",
        mend="Leave it out: points have no boxes that overlap; radius= is what keeps them apart.",
    )
