"""Validation of restoration: PSNR and SSIM of whole images against their clean versions, and of the degraded input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.data.batch import Batch
from libreyolo_core.errors import DataError
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import ImageTargets
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.tasks.quality import Clean
from libreyolo_core.tasks.sampling import spread

if TYPE_CHECKING:
    from libreyolo_core.data.scan import Scan

METRICS = ("metrics/PSNR", "metrics/SSIM", "metrics/PSNR_input", "metrics/SSIM_input")
SHOWN = 4
"""Images of val_predictions.jpg."""


@dataclass(frozen=True)
class Quality:
    """One image: its four metrics in the order of ``METRICS``, and for the few images of the picture the middles,
    uint8 RGB [h, w, 3]: degraded, restored, clean."""

    values: tuple[float, float, float, float]
    shown: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


class RestoreEvaluator(Evaluator):
    """Metrics of a restoration split; every image counts alike.

    Args:
        scan: the split.
        sheet: its input rule tells the channel order.
    """

    def __init__(self, scan: Scan, sheet: TaskSheet) -> None:
        self.scan, self.sheet = scan, sheet
        self.chosen = set(spread(len(scan.images), SHOWN))
        self.seen: dict[int, Quality] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch; each image is cut to its true size and clipped to 0 to 1 first."""
        assert predictions.image is not None and isinstance(batch.targets, ImageTargets)
        for i, index in enumerate(map(int, batch.indices)):
            h, w = batch.placements[i].photo if batch.placements else batch.images.shape[-2:]
            part = (i, slice(None), slice(h), slice(w))
            restored = _last(predictions.image[part].float().clamp(0, 1).cpu().numpy())  # [H, W, 3]
            degraded, clean = (_last(t[part].cpu().numpy()) for t in (batch.images, batch.targets.images))
            reference, before = Clean(clean / 255.0), degraded / 255.0
            values = (
                reference.psnr(restored),
                reference.ssim(restored),
                reference.psnr(before),
                reference.ssim(before),
            )
            shown = None
            if index in self.chosen:
                pixels = np.round(restored * 255).astype(np.uint8)
                shown = tuple(self._middle(image) for image in (degraded, pixels, clean))
            self.seen[index] = Quality(values, shown)  # type: ignore[arg-type]

    def _middle(self, image: np.ndarray) -> np.ndarray:
        from libreyolo_core.pictures.restored import middle

        return middle(image[..., ::-1] if self.sheet.input.colour == "bgr" else image)

    def state(self) -> dict[int, Any]:
        return self.seen

    def merge(self, states: list[dict[int, Any]]) -> None:
        self.seen = {index: quality for state in states for index, quality in state.items()}

    def compute(self) -> Metrics:
        """Means over images: ``PSNR`` in dB and ``SSIM`` of the restored image, and those of the degraded input as it
        came, so that the difference is what the network gained.

        Raises:
            DataError: nothing was collected.
        """
        if not self.seen:
            raise DataError("No image was validated", where=f"split {self.scan.split}", mend="Check the data set.")
        table = np.array([self.seen[i].values for i in sorted(self.seen)])  # [n, 4]
        return Metrics(dict(zip(METRICS, table.mean(axis=0).tolist(), strict=True)))

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """val_predictions.jpg."""
        from libreyolo_core.pictures.restored import restored_pairs

        shown = [
            (Path(self.scan.images[i].path).name, q.shown, q.values)
            for i, q in sorted(self.seen.items())
            if q.shown is not None
        ]
        path = restored_pairs(shown, Path(directory) / "val_predictions.jpg")
        return [] if path is None else [path]


def _last(image: np.ndarray) -> np.ndarray:
    """[3, H, W] as [H, W, 3]."""
    return image.transpose(1, 2, 0)
