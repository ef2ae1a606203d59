"""Validation of classification: top-1 and top-5 accuracy, mean cross-entropy, accuracy per class, confusion matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from libreyolo_core.data.batch import Batch
from libreyolo_core.errors import DataError
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.tasks.names import folder_map

if TYPE_CHECKING:
    from libreyolo_core.data.scan import Scan

METRICS = ("metrics/accuracy_top1", "metrics/accuracy_top5", "metrics/loss")


class ClassifyEvaluator(Evaluator):
    """Metrics of a classification split.

    Args:
        scan: the split; the label of each image is the index of its folder's name in ``scan.names``.
        sheet: not used, a classifier has no thresholds.
        names: the model's class names; every folder must be one of them.
    """

    def __init__(self, scan: Scan, sheet: TaskSheet, names: dict[int, str]) -> None:
        self.scan, self.names = scan, names
        self.to_model = folder_map(scan.names, names, where=f"validation, split {scan.split}")
        self.seen: dict[int, tuple[list[int], float, float]] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch; keeps the five best classes, the confidence of the first, and the loss of each image."""
        assert predictions.logits is not None
        logits = predictions.logits.float()  # [N, C]
        truth = torch.tensor([self.truth(i) for i in batch.indices], device=logits.device)
        chances = logits.log_softmax(dim=1)
        best, order = chances.topk(min(5, logits.shape[1]), dim=1)
        loss = -chances.gather(1, truth[:, None])
        table = torch.cat([order.double(), best[:, :1].exp().double(), loss.double()], dim=1).cpu().tolist()
        for index, row in zip(batch.indices, table, strict=True):
            self.seen[int(index)] = ([int(c) for c in row[:-2]], row[-2], row[-1])

    def truth(self, index: int) -> int:
        """The model's class index of an image of the scan."""
        return self.to_model[int(self.scan.images[index].labels[0])]

    def state(self) -> dict[int, Any]:
        return self.seen

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.seen = {index: row for state in states for index, row in state.items()}

    def compute(self) -> Metrics:
        """Accuracies, mean loss (natural logarithm, no label smoothing) and one row per class.

        Raises:
            DataError: nothing was collected.
        """
        indices = sorted(self.seen)
        if not indices:
            raise DataError("No image was validated", where=f"split {self.scan.split}", mend="Check the data set.")
        nc = max(self.names) + 1
        truth = np.array([self.truth(i) for i in indices])
        order = np.array([self.seen[i][0] for i in indices])  # [n, min(5, C)]
        right1, right5 = order[:, 0] == truth, (order == truth[:, None]).any(axis=1)
        table = np.zeros((nc, nc), dtype=np.int64)
        np.add.at(table, (order[:, 0], truth), 1)
        values = {
            "metrics/accuracy_top1": float(right1.mean()),
            "metrics/accuracy_top5": float(right5.mean()),
            "metrics/loss": float(np.mean([self.seen[i][2] for i in indices])),
        }
        rows = []
        for c, name in sorted(self.names.items()):
            of_class = truth == c
            count = int(of_class.sum())
            rows.append(
                {
                    "class": name,
                    "id": c,
                    "images": count,
                    "accuracy_top1": float(right1[of_class].mean()) if count else None,
                    "accuracy_top5": float(right5[of_class].mean()) if count else None,
                }
            )
        return Metrics(values, per_class=rows, curves={"confusion": table})

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """confusion_matrix.png and val_predictions.jpg."""
        from libreyolo_core.pictures import confusion, pairs

        names = [self.names[c] for c in sorted(self.names)]
        paths = [Path(directory) / "confusion_matrix.png", Path(directory) / "val_predictions.jpg"]
        confusion.confusion_picture(metrics.curves["confusion"], names, paths[0], note="best class of each image")
        pairs.class_pairs(self._shown(), paths[1])
        return [p for p in paths if p.exists()]

    def _shown(self, most: int = 8) -> list[tuple[str, str, str, float]]:
        """(path, true name, predicted name, confidence), spread evenly over the split."""
        indices = sorted(self.seen)
        chosen = sorted({indices[k * len(indices) // most] for k in range(most)})
        shown = []
        for i in chosen:
            order, confidence, _ = self.seen[i]
            shown.append((self.scan.images[i].path, self.names[self.truth(i)], self.names[order[0]], confidence))
        return shown
