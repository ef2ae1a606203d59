"""Which detections are right at IoU 0.5: precision, recall and F1 over the confidence, and the confusion matrix.

COCO's rules: detections in order of confidence, each takes the free object of its class that it overlaps most; one
that overlaps only a crowd region counts neither way (Lin et al., 2014; the evaluation code's ``evaluateImg``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IOU = 0.5


@dataclass(frozen=True)
class Truth:
    """The annotation of one image.

    Args:
        boxes: float64 [m, 4], x1 y1 x2 y2 in photo pixels.
        labels: int64 [m].
        crowd: bool [m], regions that hold many objects.
        areas: float64 [m], in square pixels (COCO's is that of the segmentation, else the box's).
        size: (height, width) in pixels.
    """

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray
    size: tuple[int, int]


@dataclass(frozen=True)
class Matches:
    """Detections of one image against its truth.

    Args:
        matched: int64 [n], the object each detection found, -1 for none.
        ignored: bool [n], detections that count neither way.
    """

    matched: np.ndarray
    ignored: np.ndarray


@dataclass(frozen=True)
class Curves:
    """Precision, recall and F1 over the confidence, all classes pooled, and per class at the best point.

    Args:
        confidence: [1000], 0 to 1.
        precision, recall, f1: [1000], of all detections above that confidence.
        class_f1: [C, 1000]; NaN rows for classes without objects.
        best: the confidence of the highest F1 (pooled).
        at_best: precision, recall and F1 there.
        class_at_best: [C, 3], the same per class; NaN where the class has no objects.
    """

    confidence: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    class_f1: np.ndarray
    best: float
    at_best: tuple[float, float, float]
    class_at_best: np.ndarray


def overlaps(a: np.ndarray, b: np.ndarray, crowd: np.ndarray | None = None) -> np.ndarray:
    """IoU [n, m] of boxes [n, 4] and [m, 4]; for columns that are crowds, the share of ``a`` that lies inside."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = np.clip(high - low, 0, None).prod(axis=2)  # [n, m]
    area_a = np.clip(a[:, 2:] - a[:, :2], 0, None).prod(axis=1)[:, None]
    area_b = np.clip(b[:, 2:] - b[:, :2], 0, None).prod(axis=1)[None, :]
    union = area_a + area_b - inner
    if crowd is not None:
        union = np.where(crowd[None, :], area_a, union)
    return np.divide(inner, union, out=np.zeros_like(inner), where=union > 0)


def match(rows: np.ndarray, truth: Truth, iou: float = IOU) -> Matches:
    """Match detections ``rows`` float [n, 6] (x1 y1 x2 y2 score class, best first) to the objects of their class."""
    n = len(rows)
    matched, ignored = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=bool)
    if n == 0 or len(truth.boxes) == 0:
        return Matches(matched, ignored)
    overlap = overlaps(rows[:, :4].astype(np.float64), truth.boxes, truth.crowd)
    hit = (overlap >= iou) & (rows[:, 5].astype(np.int64)[:, None] == truth.labels[None, :])
    _assign(hit & ~truth.crowd[None, :], overlap, matched)
    ignored = (matched < 0) & (hit & truth.crowd[None, :]).any(axis=1)
    return Matches(matched, ignored)


def _assign(hit: np.ndarray, overlap: np.ndarray, matched: np.ndarray) -> None:
    """Give each row in order its best free column where ``hit``; rows that have one in ``matched`` keep it."""
    taken = set(matched[matched >= 0].tolist())
    row, column = hit.nonzero()
    order = np.lexsort((-overlap[row, column], row))
    for i, j in zip(row[order].tolist(), column[order].tolist(), strict=True):
        if matched[i] < 0 and j not in taken:
            matched[i] = j
            taken.add(j)


def confidence_curves(
    detections: list[np.ndarray], truths: list[Truth], matches: list[Matches], nc: int, *, default: float
) -> Curves:
    """Curves of a whole split. ``default`` is the best confidence when nothing was found at all."""
    grid = np.linspace(0, 1, 1000)
    objects = np.zeros(nc, dtype=np.int64)
    for t in truths:
        np.add.at(objects, t.labels[~t.crowd], 1)
    kept = [~m.ignored for m in matches]
    scores = np.concatenate([d[k, 4] for d, k in zip(detections, kept, strict=True)] or [np.zeros(0)]).astype(float)
    labels = np.concatenate([d[k, 5] for d, k in zip(detections, kept, strict=True)] or [np.zeros(0)]).astype(int)
    right = np.concatenate([m.matched[k] >= 0 for m, k in zip(matches, kept, strict=True)] or [np.zeros(0, bool)])
    pooled = _Sweep(scores, right, int(objects.sum()))
    best = pooled.best_threshold()
    best = default if best is None else best
    p, r, f = pooled.at(grid)
    class_f1, class_at_best = np.full((nc, len(grid)), np.nan), np.full((nc, 3), np.nan)
    for c in np.flatnonzero(objects):
        of_class = labels == c
        sweep = _Sweep(scores[of_class], right[of_class], int(objects[c]))
        class_f1[c] = sweep.at(grid)[2]
        class_at_best[c] = [v[0] for v in sweep.at(np.array([best]))]
    at_best = tuple(float(v[0]) for v in pooled.at(np.array([best])))
    return Curves(grid, p, r, f, class_f1, best, at_best, class_at_best)  # type: ignore[arg-type]


class _Sweep:
    """Counts of right and wrong detections above a moving confidence."""

    def __init__(self, scores: np.ndarray, right: np.ndarray, objects: int) -> None:
        order = np.argsort(-scores, kind="stable")
        self.scores, self.objects = scores[order], objects
        self.right = np.concatenate([[0], np.cumsum(right[order])])

    def at(self, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Precision, recall and F1 of the detections with a score above each confidence; precision of none is 0."""
        kept = np.searchsorted(-self.scores, -confidence, side="left")  # how many scores lie above
        right = self.right[kept]
        return _share(right, kept), _share(right, self.objects), _share(2 * right, kept + self.objects)

    def best_threshold(self) -> float | None:
        """A confidence half-way below the detection at which F1 is highest, so that ``>`` and ``>=`` agree there."""
        if len(self.scores) == 0 or self.right[-1] == 0:
            return None
        last = np.append(self.scores[1:] != self.scores[:-1], True)  # equal scores cannot be told apart
        kept = np.arange(1, len(self.scores) + 1)
        f1 = np.where(last, _share(2 * self.right[1:], kept + self.objects), -1.0)
        cut = int(f1.argmax())
        below = self.scores[cut + 1] if cut + 1 < len(self.scores) else 0.0
        return float((self.scores[cut] + below) / 2)


def _share(part: np.ndarray, whole: np.ndarray | int) -> np.ndarray:
    part, whole = np.broadcast_arrays(np.asarray(part, dtype=float), np.asarray(whole, dtype=float))
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def confusion_matrix(
    detections: list[np.ndarray], truths: list[Truth], nc: int, *, conf: float, iou: float = IOU
) -> np.ndarray:
    """Counts int64 [C + 1, C + 1], rows predicted, columns true, the last of each is the background.

    Detections above ``conf`` first take objects of their own class (so the diagonal holds exactly the true positives
    of precision and recall), what is left is matched across classes. A detection that finds nothing is in the
    background column, an object that nothing finds in the background row; crowd regions count neither way.
    """
    table = np.zeros((nc + 1, nc + 1), dtype=np.int64)
    for found, truth in zip(detections, truths, strict=True):
        rows = found[found[:, 4] > conf]
        own = match(rows, truth, iou)
        matched = own.matched.copy()
        if len(rows) and len(truth.boxes):
            overlap = overlaps(rows[:, :4].astype(np.float64), truth.boxes, truth.crowd)
            free = (overlap >= iou) & ~truth.crowd[None, :] & ~own.ignored[:, None]
            _assign(free, overlap, matched)
        predicted = rows[:, 5].astype(np.int64)
        counted = ~own.ignored
        hit = matched >= 0
        np.add.at(table, (predicted[hit], truth.labels[matched[hit]]), 1)
        np.add.at(table[:, nc], predicted[counted & ~hit], 1)
        missed = ~truth.crowd
        missed[matched[hit]] = False
        np.add.at(table[nc], truth.labels[missed], 1)
    return table
