"""Small stand-ins for tests of tasks and prediction: scans, sheets, batches, and predictions made from boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from libreyolo_core.data.batch import Batch, Placement
from libreyolo_core.data.scan_result import ImageRecord, Scan
from libreyolo_core.family import Input, Loss, Post, Size, Task
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets

SHEET = Task(sizes={"s": Size(64, params=1)}, loss=Loss("none:None"))


def sheet(*, post: Post | None = None, rule: Input | None = None) -> Task:
    """A task's data sheet with another ``Post`` or ``Input``."""
    return replace(SHEET, post=post or SHEET.post, input=rule or SHEET.input)


def record(
    rows: Sequence[Sequence[float]], size: tuple[int, int] = (100, 100), *, path: str = "", **more: Any
) -> ImageRecord:
    """An image with rows (x1, y1, x2, y2, class)."""
    table = np.array(rows, dtype=np.float32).reshape(-1, 5)
    return ImageRecord(path, size, table[:, :4], table[:, 4].astype(np.int64), **more)


def scan_of(records: Sequence[ImageRecord], names: Sequence[str] = ("cat", "dog"), **more: Any) -> Scan:
    """A scan of the split ``val``."""
    return Scan("val", list(records), dict(enumerate(names)), **more)


def class_scan(labels: Sequence[int], names: Sequence[str], paths: Sequence[str] = ()) -> Scan:
    """A scan of a classification split."""
    empty = np.zeros((0, 4), np.float32)
    records = [
        ImageRecord(paths[i] if paths else f"{i}.jpg", (8, 8), empty, np.array([c], np.int64))
        for i, c in enumerate(labels)
    ]
    return Scan("val", records, dict(enumerate(names)), task="classify")


def predictions_of(images: Sequence[Sequence[Sequence[float]]], nc: int) -> Predictions:
    """Predictions whose rows (x1, y1, x2, y2, score, class) of each image are the only ones with a score."""
    most = max([len(rows) for rows in images] + [1])
    boxes, scores = torch.zeros(len(images), most, 4), torch.zeros(len(images), most, nc)
    for i, rows in enumerate(images):
        for j, (x1, y1, x2, y2, s, c) in enumerate(rows):
            boxes[i, j] = torch.tensor([x1, y1, x2, y2])
            scores[i, j, int(c)] = s
    return Predictions(boxes=boxes, scores=scores)


def batch_of(indices: Sequence[int], sizes: Sequence[tuple[int, int]] = ()) -> Batch:
    """An evaluation batch whose photos lie in the input as they are."""
    sizes = sizes or [(100, 100)] * len(indices)
    return Batch(
        torch.zeros(len(indices), 3, 1, 1, dtype=torch.uint8),
        BoxTargets.pad([torch.zeros(0, 4)] * len(indices), [torch.zeros(0)] * len(indices)),
        torch.zeros(len(indices), dtype=torch.int64),
        list(indices),
        [f"{i}.jpg" for i in indices],
        [Placement(s, s, (1.0, 1.0)) for s in sizes],
    )


def random_split(seed: int, images: int, nc: int) -> tuple[list[ImageRecord], list[list[list[float]]]]:
    """Records with objects of all sizes (some crowds, some images empty) and detections near and away from them."""
    rng = np.random.default_rng(seed)
    records, found = [], []
    for _ in range(images):
        n = int(rng.integers(0, 8))
        at, side = rng.uniform(0, 300, (n, 2)), rng.uniform(5, 180, (n, 2))
        boxes, labels = np.hstack([at, at + side]), rng.integers(0, nc, n)
        crowd = rng.random(n) < 0.15
        areas = side.prod(axis=1) * rng.uniform(0.4, 1.0, n)
        rows = np.hstack([boxes, labels[:, None]])
        records.append(record(rows, (480, 480), crowd=crowd, areas=areas))
        near = boxes + rng.normal(0, 6, boxes.shape)
        at, side = rng.uniform(0, 300, (4, 2)), rng.uniform(5, 100, (4, 2))
        candidates = np.vstack([near, near + 3, np.hstack([at, at + side])])
        classes = np.concatenate([labels, labels, rng.integers(0, nc, 4)])
        # few distinct scores, so that ties occur
        scores = np.round(rng.uniform(0.05, 0.95, len(candidates)), 1) + 0.002
        kept = [[*b, s, c] for b, s, c in zip(candidates, scores, classes) if b[2] > b[0] and b[3] > b[1]]
        found.append(kept if rng.random() > 0.15 else [])
    return records, found
