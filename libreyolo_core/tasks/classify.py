"""Image classification: one class per image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import BaseTask, Evaluator
from libreyolo_core.tasks.classify_eval import METRICS, ClassifyEvaluator
from libreyolo_core.tasks.thresholds import only

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


class ClassifyTask(BaseTask):
    """One class per image; fitness is top-1 accuracy."""

    name = "classify"
    fitness = "metrics/accuracy_top1"
    metrics = METRICS

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        from libreyolo_core.data.scan import scan_classify

        return scan_classify(spec, split, strict=strict)

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        from libreyolo_core.data.dataset import ClassifySet

        return ClassifySet(scan, sheet.input, seed=seed, cache=cache)

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        from libreyolo_core.data.dataset import collate_classify

        return collate_classify(samples, sheet.input)

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        """``thresholds`` are the general ones of ``BaseTask.evaluator``; a classifier has none, so only ``None`` is
        accepted."""
        _refuse(thresholds)
        return ClassifyEvaluator(scan, sheet, names)

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
        """One ``Results`` with ``probs`` (softmax in float32) per photo."""
        from libreyolo_core.results import Probs, Results

        _refuse(thresholds)
        assert predictions.logits is not None
        chances = predictions.logits.float().softmax(dim=1).cpu()  # [N, C]
        return [
            Results(np.ascontiguousarray(photo[..., ::-1]), path, names, probs=Probs(row))
            for row, photo, path in zip(chances, photos, paths, strict=True)
        ]

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        from libreyolo_core.tasks.examples import class_batch

        return class_batch(nc, size=size, count=len(counts), seed=seed)

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        from libreyolo_core.pictures.batch import class_batch

        class_batch(batch, names, path, sheet.input.colour)

    def plot_labels(self, scan: Scan, names: dict[int, str], path: Path) -> None:
        from libreyolo_core.pictures.labels import class_labels

        class_labels(scan, names, path)


def _refuse(thresholds: dict[str, Any]) -> None:
    only(
        thresholds,
        (),
        task="classify",
        noun="a classifier",
        mend="Leave it out: probabilities of all classes are returned.",
    )
