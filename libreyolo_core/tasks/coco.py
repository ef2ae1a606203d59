"""COCO's detection metrics by pycocotools, or by faster-coco-eval (the same numbers, in C++) where it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from libreyolo_core.errors import UsageError
from libreyolo_core.tasks.matching import Truth

BACKENDS = ("faster-coco-eval", "pycocotools")
MAX_DETS = (1, 10, 100)
_MODULES = {"faster-coco-eval": "faster_coco_eval", "pycocotools": "pycocotools"}
_AREAS = ("all", "small", "medium", "large")


@dataclass(frozen=True)
class CocoScores:
    """What COCO's evaluation says; values that are not defined (no object of that kind) are missing or NaN.

    Args:
        values: ``mAP50-95``, ``mAP50``, ``mAP75``, ``mAP_small``, ``mAP_medium``, ``mAP_large``, ``AR100``.
        ap: float [C], AP over IoU 0.50 to 0.95; NaN for classes without objects.
        ap50: float [C], AP at IoU 0.5.
        precision50: float [C, 101], precision at IoU 0.5 for recall 0, 0.01, ... 1; NaN likewise.
        backend: which library computed it.
    """

    values: dict[str, float]
    ap: np.ndarray
    ap50: np.ndarray
    precision50: np.ndarray
    backend: str


def installed_backend() -> str:
    """The fastest evaluation library that is installed."""
    for name in BACKENDS:
        if importlib.util.find_spec(_MODULES[name]) is not None:
            return name
    raise UsageError(
        "No COCO evaluation library is installed", where="validation", mend="Run: pip install pycocotools."
    )


def coco_scores(truths: list[Truth], detections: list[np.ndarray], nc: int, *, backend: str = "") -> CocoScores:
    """Metrics of a split.

    Args:
        truths: the annotation of each image.
        detections: float [n, 6] of each image, x1 y1 x2 y2 (photo pixels) score class.
        nc: number of classes.
        backend: one of ``BACKENDS``; "" for the fastest installed.
    """
    backend = backend or installed_backend()
    precision, recall = _run(truths, detections, nc, backend)  # [T, R, K, A, M], [T, K, A, M]
    values = {
        "mAP50-95": _mean(precision[:, :, :, 0, -1]),
        "mAP50": _mean(precision[0, :, :, 0, -1]),
        "mAP75": _mean(precision[5, :, :, 0, -1]),
        **{f"mAP_{_AREAS[a]}": _mean(precision[:, :, :, a, -1]) for a in (1, 2, 3)},
        "AR100": _mean(recall[:, :, 0, -1]),
    }
    of_class = np.where(precision[:, :, :, 0, -1] < 0, np.nan, precision[:, :, :, 0, -1])  # [T, R, K]
    return CocoScores(
        {k: v for k, v in values.items() if not np.isnan(v)},
        of_class.mean(axis=(0, 1)),
        of_class[0].mean(axis=0),
        of_class[0].T.copy(),
        backend,
    )


def _mean(values: np.ndarray) -> float:
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else float("nan")


def _run(truths: list[Truth], detections: list[np.ndarray], nc: int, backend: str) -> tuple[np.ndarray, np.ndarray]:
    coco_class, eval_class = _classes(backend)
    images = [{"id": i + 1, "height": t.size[0], "width": t.size[1]} for i, t in enumerate(truths)]
    categories = [{"id": c + 1, "name": str(c + 1)} for c in range(nc)]
    # both libraries print as they go; stdout belongs to the command's own document
    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = coco_class(), coco_class()
        truth.print_function = found.print_function = _silent  # faster-coco-eval's way of printing, to a logger
        truth.dataset = {"images": images, "categories": categories, "annotations": _truth_entries(truths)}
        found.dataset = {"images": images, "categories": categories, "annotations": _found_entries(detections)}
        truth.createIndex()
        found.createIndex()
        evaluation = eval_class(truth, found, "bbox")
        evaluation.print_function = _silent
        evaluation.params.imgIds = [image["id"] for image in images]
        evaluation.params.catIds = [category["id"] for category in categories]
        evaluation.params.maxDets = list(MAX_DETS)
        evaluation.evaluate()
        evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"]), np.asarray(evaluation.eval["recall"])


def _silent(*message: object) -> None:
    """Takes a progress message nowhere."""


def _classes(backend: str) -> tuple[Any, Any]:
    if backend == "faster-coco-eval":
        from faster_coco_eval import COCO, COCOeval_faster

        return COCO, COCOeval_faster
    if backend == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        return COCO, COCOeval
    raise UsageError(f"Unknown COCO backend {backend!r}", where="validation", mend=f"Use one of {BACKENDS}.")


def _truth_entries(truths: list[Truth]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for i, t in enumerate(truths):
        corners = t.boxes.tolist()
        for (x1, y1, x2, y2), c, crowd, area in zip(
            corners, t.labels.tolist(), t.crowd.tolist(), t.areas.tolist(), strict=True
        ):
            entries.append(
                {
                    "id": len(entries) + 1,  # 0 would read as "not matched"
                    "image_id": i + 1,
                    "category_id": c + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": area,
                    "iscrowd": int(crowd),
                }
            )
    return entries


def _found_entries(detections: list[np.ndarray]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for i, rows in enumerate(detections):
        for x1, y1, x2, y2, score, c in rows.astype(np.float64).tolist():
            w, h = x2 - x1, y2 - y1
            entries.append(
                {
                    "id": len(entries) + 1,
                    "image_id": i + 1,
                    "category_id": int(c) + 1,
                    "bbox": [x1, y1, w, h],
                    "area": w * h,
                    "score": score,
                    "iscrowd": 0,
                }
            )
    return entries
