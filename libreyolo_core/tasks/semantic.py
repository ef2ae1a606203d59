"""Semantic segmentation: a class for every pixel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import IGNORED
from libreyolo_core.tasks.base import BaseTask, Evaluator
from libreyolo_core.tasks.semantic_eval import METRICS, SemanticEvaluator
from libreyolo_core.tasks.thresholds import only
from libreyolo_core.tasks.upsampling import class_map, photo_window

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


class SemanticTask(BaseTask):
    """A class for every pixel; fitness is the mean over classes of intersection over union."""

    name = "semantic"
    fitness = "metrics/mIoU"
    metrics = METRICS

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        from libreyolo_core.data.scan import scan_semantic

        return scan_semantic(spec, split, strict=strict)

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        from libreyolo_core.data.dataset import SemanticSet

        return SemanticSet(scan, sheet.input, seed=seed, cache=cache)

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        from libreyolo_core.data.dataset import collate_semantic

        return collate_semantic(samples, sheet.input)

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        """Every pixel has its most probable class, so there is no threshold: only ``None`` is accepted."""
        _known(thresholds, ())
        return SemanticEvaluator(scan, sheet, names)

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
        """One ``Results`` with ``semantic_mask`` per photo, int64 [H, W] on the CPU.

        Logits are cut to the part of the input that the photo covers, resized bilinearly in float32 to the photo, and
        each pixel takes its best class. ``thresholds``: ``classes`` alone; pixels whose best class is another one
        become 255.
        """
        from libreyolo_core.results import Results

        classes = _known(thresholds, ("classes",)).get("classes")
        assert predictions.logits is not None
        cells = predictions.logits.shape[-2], predictions.logits.shape[-1]
        results = []
        for logits, placement, photo, path in zip(predictions.logits, placements, photos, paths, strict=True):
            mask = class_map(logits, (photo.shape[0], photo.shape[1]), photo_window(placement, cells)).cpu()
            if classes is not None:
                mask = mask.masked_fill(~torch.isin(mask, torch.tensor(list(classes))), IGNORED)
            results.append(Results(np.ascontiguousarray(photo[..., ::-1]), path, names, semantic_mask=mask))
        return results

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        from libreyolo_core.tasks.examples import mask_batch

        return mask_batch(nc, size=size, count=len(counts), seed=seed)

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        from libreyolo_core.pictures.batch import mask_batch

        mask_batch(batch, names, path, sheet.input.colour)

    def plot_labels(self, scan: Scan, names: dict[int, str], path: Path) -> None:
        from libreyolo_core.pictures.labels import mask_labels

        mask_labels(scan, names, path)


def _known(thresholds: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return only(
        thresholds,
        known,
        task="semantic",
        noun="a semantic model",
        mend="Leave it out: every pixel gets its most probable class.",
    )
