"""Validation of detection: collects detections in photo pixels, computes COCO metrics and true precision and recall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.data.batch import Batch
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.tasks.coco import CocoScores, coco_scores
from libreyolo_core.tasks.faults import nothing_labelled
from libreyolo_core.tasks.matching import Curves, Truth, confidence_curves, confusion_matrix, match
from libreyolo_core.tasks.names import class_map
from libreyolo_core.tasks.postprocess import postprocess, to_host
from libreyolo_core.tasks.sampling import spread_over_labelled

if TYPE_CHECKING:
    from libreyolo_core.data.scan import Scan

METRICS = (
    "metrics/mAP50-95",
    "metrics/mAP50",
    "metrics/mAP75",
    "metrics/precision",
    "metrics/recall",
    "metrics/F1",
    "metrics/conf_best_f1",
    "metrics/mAP_small",
    "metrics/mAP_medium",
    "metrics/mAP_large",
    "metrics/AR100",
)


class DetectEvaluator(Evaluator):
    """Metrics of a detection split.

    Args:
        scan: the split; boxes of its images in photo pixels are the truth.
        sheet: thresholds come from ``sheet.post``: ``val_conf``, ``val_iou``, ``max_det``.
        names: the model's class names.
        conf, iou, max_det: override the sheet's.
        backend: COCO library, see ``libreyolo_core.tasks.coco``.
    """

    def __init__(
        self,
        scan: Scan,
        sheet: TaskSheet,
        names: dict[int, str],
        *,
        conf: float | None = None,
        iou: float | None = None,
        max_det: int | None = None,
        backend: str = "",
    ) -> None:
        self.scan, self.post, self.names, self.backend = scan, sheet.post, names, backend
        self.conf = sheet.post.val_conf if conf is None else conf
        self.iou = sheet.post.val_iou if iou is None else iou
        self.max_det = sheet.post.max_det if max_det is None else max_det
        self.to_model = class_map(scan.names, names, where=f"validation, split {scan.split}")
        self.found: dict[int, np.ndarray] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch; keeps float32 [n, 6] per image: x1 y1 x2 y2 in photo pixels, score, class."""
        found = to_host(
            postprocess(
                predictions,
                self.post,
                placements=batch.placements,
                conf=self.conf,
                iou=self.iou,
                max_det=self.max_det,
            )
        )
        for index, d in zip(batch.indices, found, strict=True):
            rows = np.empty((len(d), 6), dtype=np.float32)
            rows[:, :4], rows[:, 4], rows[:, 5] = d.boxes.numpy(), d.scores.numpy(), d.labels.numpy()
            self.found[int(index)] = rows

    def state(self) -> dict[int, np.ndarray]:
        return self.found

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.found = {index: rows for state in states for index, rows in state.items()}

    def compute(self) -> Metrics:
        """Metrics of the images collected.

        Precision, recall and F1 are those of all detections at IoU 0.5 above ``metrics/conf_best_f1``, the confidence
        at which F1 is highest (the sheet's prediction default when nothing was found). The COCO values follow COCO's
        evaluation with 100 detections per image and class; sizes without an object are left out.

        Raises:
            DataError: none of the images has an object, so no metric is defined.
        """
        indices = sorted(self.found)
        detections = [self.found[i] for i in indices]
        truths = [self.truth(i) for i in indices]
        nc = max(self.names) + 1
        if not any((~t.crowd).any() for t in truths):
            raise nothing_labelled(len(truths), self.scan.split, what="labelled object", files="label files")
        coco = coco_scores(truths, detections, nc, backend=self.backend)
        matches = [match(d, t) for d, t in zip(detections, truths, strict=True)]
        curves = confidence_curves(detections, truths, matches, nc, default=self.post.conf)
        values = {f"metrics/{k}": v for k, v in coco.values.items()}
        for name, value in zip(("precision", "recall", "F1"), curves.at_best, strict=True):
            values[f"metrics/{name}"] = value
        values["metrics/conf_best_f1"] = curves.best
        return Metrics(
            {name: values[name] for name in METRICS if name in values},
            per_class=self._per_class(truths, coco, curves),
            curves={
                "confidence": curves,
                "coco": coco,
                "confusion": confusion_matrix(detections, truths, nc, conf=curves.best),
            },
        )

    def _per_class(self, truths: list[Truth], coco: CocoScores, curves: Curves) -> list[dict[str, Any]]:
        counts = np.array([np.bincount(t.labels[~t.crowd], minlength=max(self.names) + 1) for t in truths])
        images, instances, rows = (counts > 0).sum(axis=0), counts.sum(axis=0), []
        for c, name in sorted(self.names.items()):
            p, r, f1 = curves.class_at_best[c]
            row = {"class": name, "id": c, "images": int(images[c]), "instances": int(instances[c])}
            scores = {"precision": p, "recall": r, "F1": f1, "AP50": coco.ap50[c], "AP50-95": coco.ap[c]}
            rows.append(row | {k: None if np.isnan(v) else float(v) for k, v in scores.items()})
        return rows

    def truth(self, index: int) -> Truth:
        """The annotation of an image of the scan, with the model's class indices."""
        record = self.scan.images[index]
        boxes = np.asarray(record.boxes, dtype=np.float64).reshape(-1, 4)
        labels = np.array([self.to_model[int(c)] for c in record.labels], dtype=np.int64)
        sides = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        return Truth(
            boxes,
            labels,
            np.zeros(len(boxes), dtype=bool) if record.crowd is None else np.asarray(record.crowd, dtype=bool),
            sides if record.areas is None else np.asarray(record.areas, dtype=np.float64),
            (int(record.size[0]), int(record.size[1])),
        )

    def coco_results(self) -> list[dict[str, Any]]:
        """Detections in COCO's result format, with the data set's own image and category ids where it has them."""
        to_data = {j: i for i, j in self.to_model.items()}
        category = self.scan.category_ids or {}
        image = self.scan.image_ids
        entries = []
        for index in sorted(self.found):
            for x1, y1, x2, y2, score, c in self.found[index].astype(float).tolist():
                if int(c) not in to_data:
                    continue  # a class of the model that the data set does not have
                own = to_data[int(c)]
                entries.append(
                    {
                        "image_id": image[index] if image else index,
                        "category_id": category.get(own, own),
                        "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)],
                        "score": round(score, 5),
                    }
                )
        return entries

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """PR_curve.png, F1_curve.png, confusion_matrix.png and val_predictions.jpg."""
        from libreyolo_core.pictures import charts, confusion, pairs

        directory = Path(directory)
        names = [self.names[c] for c in sorted(self.names)]
        coco, curves = metrics.curves["coco"], metrics.curves["confidence"]
        paths = [directory / n for n in ("PR_curve.png", "F1_curve.png", "confusion_matrix.png", "val_predictions.jpg")]
        charts.precision_recall(coco.precision50, coco.ap50, names, paths[0])
        charts.f1_confidence(curves, names, paths[1])
        confusion.confusion_picture(
            metrics.curves["confusion"],
            [*names, "background"],
            paths[2],
            note=f"IoU from 0.5, confidence above {curves.best:.3f} (best F1)",
            background=True,
        )
        pairs.box_pairs(self._shown(curves.best), self.names, paths[3], conf=curves.best)
        return [p for p in paths if p.exists()]

    def _shown(self, conf: float, most: int = 8) -> list[tuple[str, Truth, np.ndarray]]:
        """Photos for the picture, spread evenly over those with objects; background fills up when there are fewer."""
        chosen = spread_over_labelled(self.found, lambda i: len(self.scan.images[i].boxes) > 0, most)
        return [(self.scan.images[i].path, self.truth(i), self.found[i][self.found[i][:, 4] > conf]) for i in chosen]
