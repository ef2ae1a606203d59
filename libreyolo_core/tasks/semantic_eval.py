"""Validation of semantic segmentation: confusion of pixels, intersection over union, accuracies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import IGNORED, MaskTargets
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.tasks.faults import nothing_labelled
from libreyolo_core.tasks.names import class_map as classes_by_name
from libreyolo_core.tasks.sampling import spread
from libreyolo_core.tasks.upsampling import class_map, photo_window

if TYPE_CHECKING:
    from libreyolo_core.data.scan import Scan

METRICS = ("metrics/mIoU", "metrics/pixel_accuracy", "metrics/mean_accuracy")
SHOWN = 6
"""Images of val_predictions.jpg."""


@dataclass(frozen=True)
class Shown:
    """An image for the picture, cut to the photo's part of the input: uint8 [h, w, 3] RGB and uint8 [h, w] masks."""

    image: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray


@dataclass(frozen=True)
class Pixels:
    """What one image adds to the confusion matrix, without its zeros.

    Args:
        cells: int32 [k], ``predicted * C + true``.
        counts: int64 [k], pixels.
        shown: for the few images of the picture.
    """

    cells: np.ndarray
    counts: np.ndarray
    shown: Shown | None = None


class SemanticEvaluator(Evaluator):
    """Metrics of a semantic split, over the pixels of the network's input that are not ignored (255).

    Args:
        scan: the split.
        sheet: its input rule tells the channel order.
        names: the model's class names.
    """

    def __init__(self, scan: Scan, sheet: TaskSheet, names: dict[int, str]) -> None:
        self.scan, self.sheet, self.names = scan, sheet, names
        self.nc = max(names) + 1
        found = classes_by_name(scan.names, names, where=f"validation, split {scan.split}")
        table = [found.get(value, IGNORED) for value in range(256)]
        self.to_model = torch.tensor(table, dtype=torch.int64)
        self.chosen = set(spread(len(scan.images), SHOWN))
        self.seen: dict[int, Pixels] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch; keeps the non-zero cells of the confusion matrix of each image."""
        assert predictions.logits is not None and isinstance(batch.targets, MaskTargets)
        logits = predictions.logits
        masks = self.to_model.to(logits.device)[batch.targets.masks.to(logits.device).long()]  # [N, H, W]
        size = masks.shape[-2], masks.shape[-1]
        counts, predicted = [], []
        for row, mask in zip(logits, masks, strict=True):
            best = class_map(row, size)
            counts.append(self._count(best, mask))
            predicted.append(best)
        host = torch.stack(counts).cpu().numpy()  # [N, C * C], one copy for the batch
        for i, index in enumerate(map(int, batch.indices)):
            cells = np.flatnonzero(host[i])
            shown = self._shown(batch, i, masks[i], predicted[i]) if index in self.chosen else None
            self.seen[index] = Pixels(cells.astype(np.int32), host[i, cells], shown)

    def _count(self, predicted: Tensor, mask: Tensor) -> Tensor:
        """int64 [C * C]: pixels by ``predicted * C + true``; ignored ones go to a cell of their own and are dropped."""
        spare = self.nc * self.nc
        cell = torch.where(mask == IGNORED, spare, predicted * self.nc + mask)
        return torch.bincount(cell.flatten(), minlength=spare + 1)[:spare]

    def _shown(self, batch: Batch, i: int, mask: Tensor, predicted: Tensor) -> Shown:
        image = batch.images[i].cpu().numpy().transpose(1, 2, 0)  # [H, W, 3]
        if self.sheet.input.colour == "bgr":
            image = image[..., ::-1]
        top, left, bottom, right = 0, 0, *image.shape[:2]
        if batch.placements:
            top, left, bottom, right = photo_window(batch.placements[i], (bottom, right))
        part = slice(top, bottom), slice(left, right)
        truth, found = (m.to(torch.uint8).cpu().numpy()[part] for m in (mask, predicted))
        return Shown(np.ascontiguousarray(image[part]), truth, found)

    def state(self) -> dict[int, Any]:
        return self.seen

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.seen = {index: pixels for state in states for index, pixels in state.items()}

    def confusion(self) -> np.ndarray:
        """int64 [C, C]: pixels of everything collected, rows predicted, columns true."""
        total = np.zeros(self.nc * self.nc, dtype=np.int64)
        for pixels in self.seen.values():
            total[pixels.cells] += pixels.counts  # cells of one image are distinct
        return total.reshape(self.nc, self.nc)

    def compute(self) -> Metrics:
        """``mIoU``: mean intersection over union of the classes that occur in truth or prediction; ``pixel_accuracy``:
        share of right pixels; ``mean_accuracy``: mean over the classes that occur in the truth of the share of their
        pixels that is right (Long et al., 2015, section 5).

        Raises:
            DataError: not one labelled pixel was collected.
        """
        table = self.confusion()
        right, predicted, true = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
        if not table.any():
            raise nothing_labelled(len(self.seen), self.scan.split, what="labelled pixel", files="masks")
        union = predicted + true - right
        iou = np.divide(right, union, out=np.full(self.nc, np.nan), where=union > 0)
        accuracy = np.divide(right, true, out=np.full(self.nc, np.nan), where=true > 0)
        values = {
            "metrics/mIoU": float(np.nanmean(iou)),
            "metrics/pixel_accuracy": float(right.sum() / table.sum()),
            "metrics/mean_accuracy": float(np.nanmean(accuracy)),
        }
        images = np.zeros(self.nc, dtype=np.int64)
        for pixels in self.seen.values():
            images[np.unique(pixels.cells % self.nc)] += 1
        rows = [
            {
                "class": name,
                "id": c,
                "images": int(images[c]),
                "pixels": int(true[c]),
                "IoU": None if np.isnan(iou[c]) else float(iou[c]),
                "accuracy": None if np.isnan(accuracy[c]) else float(accuracy[c]),
            }
            for c, name in sorted(self.names.items())
        ]
        return Metrics(values, per_class=rows, curves={"confusion": table, "IoU": iou})

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """IoU_per_class.png, confusion_matrix.png and val_predictions.jpg."""
        from libreyolo_core.pictures import charts, confusion, masks

        directory = Path(directory)
        names = [self.names[c] for c in sorted(self.names)]
        paths = [directory / n for n in ("IoU_per_class.png", "confusion_matrix.png", "val_predictions.jpg")]
        charts.class_scores(metrics.curves["IoU"], names, paths[0], what="IoU", mean=metrics.values["metrics/mIoU"])
        confusion.confusion_picture(metrics.curves["confusion"], names, paths[1], note="pixels that are not ignored")
        shown = [
            (Path(self.scan.images[i].path).name, pixels.shown)
            for i, pixels in sorted(self.seen.items())
            if pixels.shown is not None
        ]
        masks.mask_pairs(shown, self.names, paths[2])
        return [p for p in paths if p.exists()]
