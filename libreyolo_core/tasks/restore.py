"""Image restoration: a clean image from a degraded one, at the photo's own size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import BaseTask, Evaluator
from libreyolo_core.tasks.restore_eval import METRICS, RestoreEvaluator
from libreyolo_core.tasks.thresholds import only

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


class RestoreTask(BaseTask):
    """A clean image from a degraded one; fitness is the mean peak signal-to-noise ratio in dB."""

    name = "restore"
    fitness = "metrics/PSNR"
    metrics = METRICS
    has_classes = False

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        from libreyolo_core.data.scan import scan_restore

        return scan_restore(spec, split, strict=strict)

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        from libreyolo_core.data.dataset import RestoreSet

        return RestoreSet(scan, sheet.input, seed=seed, cache=cache)

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        from libreyolo_core.data.dataset import collate_restore

        return collate_restore(samples, sheet.input)

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: Any) -> Evaluator:
        """Restoration has neither thresholds nor classes: only ``None`` is accepted."""
        _refuse(thresholds)
        return RestoreEvaluator(scan, sheet)

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
        """One ``Results`` with ``restored`` per photo: the prediction cut to the photo, clipped, as uint8 BGR."""
        from libreyolo_core.results import Results

        _refuse(thresholds)
        assert predictions.image is not None
        results = []
        for image, photo, path in zip(predictions.image, photos, paths, strict=True):
            restored = to_pixels(image[:, : photo.shape[0], : photo.shape[1]])
            if sheet.input.colour == "rgb":
                restored = restored[..., ::-1]
            bgr = np.ascontiguousarray(photo[..., ::-1])
            results.append(Results(bgr, path, names, restored=np.ascontiguousarray(restored)))
        return results

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        from libreyolo_core.tasks.examples import image_batch

        return image_batch(size=size, count=len(counts), seed=seed)

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        from libreyolo_core.pictures.batch import image_batch

        image_batch(batch, path, sheet.input.colour)


def to_pixels(image: Tensor) -> np.ndarray:
    """uint8 [H, W, 3] from a float image [3, H, W] of values 0 to 1, which is clipped and rounded."""
    return image.float().clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).cpu().numpy()


def _refuse(thresholds: dict[str, Any]) -> None:
    only(thresholds, (), task="restore", noun="image restoration", mend="Leave it out: the whole image is restored.")
