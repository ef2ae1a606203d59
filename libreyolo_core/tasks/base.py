"""The contract of a task. To add one, subclass ``BaseTask`` and register it with the hook ``libreyolo_tasks``.

The engine, the validator and the predictor know tasks only through this class; they hold no task's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from libreyolo_core.data.batch import Batch, Placement, Sample
from libreyolo_core.family import Task as TaskSheet
from libreyolo_core.predictions import Predictions

if TYPE_CHECKING:
    import numpy as np
    from torch.utils.data import Dataset

    from libreyolo_core.data.catalogue import DataSpec
    from libreyolo_core.data.scan import Scan
    from libreyolo_core.results import Results


@dataclass
class Metrics:
    """What a validation found.

    Args:
        values: scalars by name, e.g. ``metrics/mAP50-95``; the same names in results.csv, JSON and the table.
        per_class: one row per class, e.g. ``{"class": "tree", "images": 7, "instances": 246, "AP50": 0.4}``.
        curves: whatever the pictures need (not written to JSON).
        speed: milliseconds per image: preprocess, inference, postprocess.
    """

    values: dict[str, float]
    per_class: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)


class Evaluator:
    """Collects predictions of a split and computes its metrics. One is made per validation."""

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take the predictions of one evaluation batch (tensors on any device); keeps per-image host data only."""
        raise NotImplementedError

    def state(self) -> dict[int, Any]:
        """What was collected, picklable, by sample index; the union over shards is the state of the whole."""
        raise NotImplementedError

    def merge(self, states: list[dict[int, Any]]) -> None:
        """Replace what was collected by the union of ``states``."""
        raise NotImplementedError

    def compute(self) -> Metrics:
        """The metrics of everything collected; independent of the order of updates."""
        raise NotImplementedError

    def plot(self, metrics: Metrics, directory: Path) -> list[Path]:
        """Write the task's pictures (curves, confusion matrix, truth beside prediction) and return their paths."""
        return []


class BaseTask:
    """One task. Stateless: everything comes in as arguments."""

    name: ClassVar[str] = ""
    fitness: ClassVar[str] = ""
    """The metric that decides which checkpoint is best; higher is better."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of all scalar metrics, in the order of results.csv."""
    counts_objects: ClassVar[bool] = False
    """Whether an image may have any number of annotations, none included."""

    has_classes: ClassVar[bool] = True
    """Whether a model of this task has a class count of its own; without, ``nc`` is 1 and cannot be given."""

    def scan(self, spec: DataSpec, split: str, *, strict: bool = False) -> Scan:
        """Read and check the annotation of a split (cached); faults are dropped and reported, or errors when strict."""
        raise NotImplementedError

    def dataset(self, scan: Scan, sheet: TaskSheet, *, seed: int = 0, cache: str = "") -> Dataset:
        """A map-style data set that answers ``SampleRequest`` with ``Sample``, purely.

        Args:
            cache: "" for none, ``ram`` or ``disk``.
        """
        raise NotImplementedError

    def collate(self, samples: list[Sample], sheet: TaskSheet) -> Batch:
        """Stack fitted samples of one size; channel order as ``sheet.input.colour``."""
        raise NotImplementedError

    def evaluator(self, scan: Scan, sheet: TaskSheet, names: dict[int, str], **thresholds: float | None) -> Evaluator:
        """An evaluator for a split. ``thresholds``: ``conf``, ``iou``, ``max_det``; ``None`` means the sheet's."""
        raise NotImplementedError

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
        """One ``Results`` per photo (RGB uint8 arrays). ``thresholds``: ``conf``, ``iou``, ``max_det``, ``classes``."""
        raise NotImplementedError

    def example(self, sheet: TaskSheet, nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
        """A seeded batch of made-up images, one per entry of ``counts`` (how many annotations the image has, where the
        task has several), ``size`` (height, width) pixels; for tests, counters and benchmarks."""
        raise NotImplementedError

    def plot_batch(self, batch: Batch, names: dict[int, str], path: Path, sheet: TaskSheet) -> None:
        """A picture of what the network really sees (``train_batch0.jpg``)."""

    def plot_labels(self, scan: Scan, names: dict[int, str], path: Path) -> None:
        """A picture of the data set's annotation (``labels.png``)."""
