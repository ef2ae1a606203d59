"""Validation of points: precision, recall, F1 and distance at the best of a few confidences and radii."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.data.batch import Batch
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.tasks.faults import nothing_labelled
from libreyolo_core.tasks.names import class_map
from libreyolo_core.tasks.peaks import Peaks, decode
from libreyolo_core.tasks.point_matching import MATCH_CELLS, Centres, match_points
from libreyolo_core.tasks.sampling import spread_over_labelled

if TYPE_CHECKING:
    from libreyolo_core.data.scan import Scan

CONFS = (0.25, 0.35, 0.5, 0.65, 0.8, 0.9)
RADII = (1, 2)
"""The confidences and radii that are tried; the first best pair counts."""
CURVE = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Confidences of the F1 curve."""
METRICS = (
    "metrics/F1",
    "metrics/precision",
    "metrics/recall",
    "metrics/mean_distance",
    "metrics/conf",
    "metrics/TP",
    "metrics/FP",
    "metrics/FN",
    "decode/threshold",
    "decode/nms_radius",
    "decode/match_cells",
)


@dataclass(frozen=True)
class Tally:
    """Counts of a split per class, float64 [C]: right points, wrong points, missed objects, and the sum of the
    distances of the right ones in photo pixels."""

    right: np.ndarray
    wrong: np.ndarray
    missed: np.ndarray
    distance: np.ndarray

    def scores(self) -> tuple[float, float, float]:
        """Precision, recall and F1 of all classes together."""
        return shares(float(self.right.sum()), float(self.wrong.sum()), float(self.missed.sum()))


def shares(right: float, wrong: float, missed: float) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 where nothing was found, or nothing was there."""

    def share(whole: float, part: float = right) -> float:
        return part / whole if whole else 0.0

    return share(right + wrong), share(right + missed), share(2 * right + wrong + missed, 2 * right)


class PointEvaluator(Evaluator):
    """Metrics of a split with object centres.

    Args:
        scan: the split; the centres of its boxes are the truth.
        sheet: ``sheet.post.max_det`` caps the points of an image.
        names: the model's class names.
        conf, radius: try these alone.
        max_det: overrides the sheet's.
    """

    def __init__(
        self,
        scan: Scan,
        sheet: TaskSheet,
        names: dict[int, str],
        *,
        conf: float | None = None,
        max_det: int | None = None,
        radius: int | None = None,
    ) -> None:
        self.scan, self.names = scan, names
        self.nc = max(names) + 1
        self.confs = CONFS if conf is None else (conf,)
        self.radii = RADII if radius is None else (radius,)
        self.max_det = sheet.post.max_det if max_det is None else max_det
        self.to_model = class_map(scan.names, names, where=f"validation, split {scan.split}")
        self.found: dict[int, dict[int, Peaks]] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch; keeps the points of each image by radius, down to the lowest confidence that is looked at."""
        lowest = min(*self.confs, *CURVE)
        for radius in self.radii:
            found = decode(predictions, batch.placements, conf=lowest, radius=radius, max_det=self.max_det)
            for index, peaks in zip(batch.indices, found, strict=True):
                self.found.setdefault(int(index), {})[radius] = peaks

    def state(self) -> dict[int, Any]:
        return self.found

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.found = {index: peaks for state in states for index, peaks in state.items()}

    def compute(self) -> Metrics:
        """Metrics at the confidence (``metrics/conf``, ``decode/threshold``) and the radius (``decode/nms_radius``)
        with the highest F1. A point is right within ``decode/match_cells`` cells of the centre of an object of its
        class, each object once. ``mean_distance`` is that of the right points in pixels of the photo; left out when
        there is none.

        Raises:
            DataError: none of the images has an object, so no metric is defined.
        """
        truths = {i: self.truth(i) for i in sorted(self.found)}
        if not any(len(t.labels) for t in truths.values()):
            raise nothing_labelled(len(truths), self.scan.split, what="labelled object", files="label files")
        tallies = {(conf, radius): self._tally(truths, conf, radius) for conf in self.confs for radius in self.radii}
        conf, radius = max(tallies, key=lambda pair: tallies[pair].scores()[2])  # the first of equals
        best = tallies[conf, radius]
        precision, recall, f1 = best.scores()
        right = best.right.sum()
        values = {
            "metrics/F1": f1,
            "metrics/precision": precision,
            "metrics/recall": recall,
            "metrics/mean_distance": float(best.distance.sum() / right) if right else None,
            "metrics/conf": conf,
            "metrics/TP": float(right),
            "metrics/FP": float(best.wrong.sum()),
            "metrics/FN": float(best.missed.sum()),
            "decode/threshold": conf,
            "decode/nms_radius": float(radius),
            "decode/match_cells": MATCH_CELLS,
        }
        return Metrics(
            {name: value for name, value in values.items() if value is not None},
            per_class=self._per_class(best, truths),
            curves={"conf": conf, "radius": radius},
        )

    def _tally(self, truths: dict[int, Centres], conf: float, radius: int) -> Tally:
        counts = Tally(*(np.zeros(self.nc) for _ in range(4)))
        for index, truth in truths.items():
            peaks = self.found[index][radius].above(conf)
            score = match_points(peaks, truth)
            hit = score.matched >= 0
            np.add.at(counts.right, peaks.labels[hit], 1)
            np.add.at(counts.wrong, peaks.labels[~hit & ~score.ignored], 1)
            np.add.at(counts.missed, truth.labels[score.missed], 1)
            np.add.at(counts.distance, peaks.labels[hit], score.distance[hit])
        return counts

    def _per_class(self, best: Tally, truths: dict[int, Centres]) -> list[dict[str, Any]]:
        counts = np.array([np.bincount(t.labels, minlength=self.nc) for t in truths.values()])
        images, instances, rows = (counts > 0).sum(axis=0), counts.sum(axis=0), []
        for c, name in sorted(self.names.items()):
            right, wrong, missed = float(best.right[c]), float(best.wrong[c]), float(best.missed[c])
            scores = dict(zip(("precision", "recall", "F1"), shares(right, wrong, missed), strict=True))
            row = {"class": name, "id": c, "images": int(images[c]), "instances": int(instances[c])}
            row |= {k: v if instances[c] else None for k, v in scores.items()}
            rows.append(row | {"mean_distance": float(best.distance[c] / right) if right else None})
        return rows

    def truth(self, index: int) -> Centres:
        """The annotation of an image of the scan, with the model's class indices."""
        record = self.scan.images[index]
        boxes = np.asarray(record.boxes, dtype=np.float64).reshape(-1, 4)
        labels = np.array([self.to_model[int(c)] for c in record.labels], dtype=np.int64)
        crowd = np.zeros(len(boxes), dtype=bool) if record.crowd is None else np.asarray(record.crowd, dtype=bool)
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        return Centres(centres[~crowd], labels[~crowd], boxes[crowd], labels[crowd])

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """F1_curve.png and val_predictions.jpg."""
        from libreyolo_core.pictures import charts, pairs

        directory = Path(directory)
        conf, radius = metrics.curves["conf"], metrics.curves["radius"]
        truths = {i: self.truth(i) for i in sorted(self.found)}
        steps = sorted({*CURVE, *self.confs})
        curve = np.array([self._tally(truths, step, radius).scores() for step in steps])  # [k, 3]
        paths = [directory / "F1_curve.png", directory / "val_predictions.jpg"]
        charts.point_scores(np.array(steps), curve, paths[0], conf=conf, radius=radius, cells=MATCH_CELLS)
        chosen = spread_over_labelled(self.found, lambda i: len(truths[i].labels) > 0, 8)
        shown = []
        for i in chosen:
            peaks = self.found[i][radius].above(conf)
            shown.append((self.scan.images[i].path, truths[i], peaks, match_points(peaks, truths[i])))
        pairs.point_pairs(shown, self.names, paths[1], conf=conf, radius=radius, cells=MATCH_CELLS)
        return [p for p in paths if p.exists()]
