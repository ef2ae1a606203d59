"""The task ``count``: how many objects of each class a photo shows. It learns from the boxes of any detection set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from libreyolo_core.data.batch import Batch, Placement
from libreyolo_core.data.scan import Scan
from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.results import Results
from libreyolo_core.tasks.base import BaseTask, Evaluator, Metrics
from libreyolo_core.tasks.detect import DetectTask


class CountResults(Results):
    """A photo and ``counts``, the expected number of objects by class name."""

    counts: dict[str, float]

    def verbose(self) -> str:
        """``12.3 apple, 0.1 leaf``."""
        return ", ".join(f"{n:.1f} {name}" for name, n in self.counts.items())

    def summary(self, *, normalize: bool = False, decimals: int = 5) -> list[dict[str, Any]]:
        """One dictionary per class."""
        return [
            {"class": c, "name": name, "count": round(self.counts[name], decimals)} for c, name in self.names.items()
        ]

    def to_dict(self, *, normalize: bool = False, decimals: int = 5) -> dict[str, Any]:
        """As every result, and ``counts``."""
        plain = super().to_dict(normalize=normalize, decimals=decimals)
        return {**plain, "counts": self.summary(decimals=decimals)}


class CountEvaluator(Evaluator):
    """Mean absolute error of the number of objects in a photo, and how well it agrees in proportion."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.seen: dict[int, float] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        assert predictions.logits is not None
        totals = predictions.logits.float().exp().sum(1).tolist()
        self.seen.update(zip(batch.indices, totals, strict=True))

    def state(self) -> dict[int, Any]:
        return self.seen

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.seen = {index: total for state in states for index, total in state.items()}

    def compute(self) -> Metrics:
        if not self.seen:
            raise DataError("No photo was validated", where=f"split {self.scan.split}", mend="Check the data set.")
        order = sorted(self.seen)
        found = np.array([self.seen[i] for i in order])
        truth = np.array([len(self.scan.images[i].labels) for i in order], dtype=float)
        larger = np.maximum(np.maximum(found, truth), 1e-9)
        agreement = np.where(larger < 0.5, 1.0, np.minimum(found, truth) / larger)
        return Metrics(
            {"metrics/agreement": float(agreement.mean()), "metrics/MAE": float(np.abs(found - truth).mean())}
        )


class CountTask(DetectTask):
    """Reads what a detector reads, and forgets where the boxes were."""

    name = "count"
    fitness = "metrics/agreement"
    metrics = ("metrics/agreement", "metrics/MAE")

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        _refuse(thresholds)
        return CountEvaluator(scan)

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
        _refuse(thresholds)
        assert predictions.logits is not None
        results: list[Results] = []
        for row, photo, path in zip(predictions.logits.float().exp().tolist(), photos, paths, strict=True):
            result = CountResults(np.ascontiguousarray(photo[..., ::-1]), path, names)
            result.counts = {names[c]: n for c, n in enumerate(row)}
            results.append(result)
        return results

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        BaseTask.plot_batch(self, batch, names, path, sheet)  # a detector's picture would draw boxes


def _refuse(thresholds: dict[str, Any]) -> None:
    """No argument is a silent no-op."""
    for name, value in thresholds.items():
        if value not in (None, False):
            raise ConfigError(f"{name}={value!r} has no meaning for counting", where="task count", mend="Leave it out.")
