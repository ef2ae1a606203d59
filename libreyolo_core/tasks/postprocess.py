"""From canonical predictions to detections, as the sheet's ``Post`` says: pick, threshold, map to the photo, NMS, cap.

The order is that of the sheets: rows that are not finite go first, then the confidence threshold, then the map to
photo pixels with clamping, then NMS, then the cap. Overlaps do not change under the map (it scales each axis by a
constant), so without placements the same rows survive, except where clamping cuts a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from libreyolo_core.data.batch import Placement
from libreyolo_core.family import Post
from libreyolo_core.predictions import Predictions

NMS_CANDIDATES = 30_000
"""The most (row, class) pairs of one image that enter NMS when every pair is a candidate (``pick="topk"``)."""


@dataclass
class Detections:
    """The detections of one image, best first.

    Args:
        boxes: float32 [n, 4], x1 y1 x2 y2.
        scores: float32 [n].
        labels: int64 [n], class indices.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.scores)


@torch.no_grad()
def postprocess(
    predictions: Predictions,
    post: Post,
    *,
    placements: Sequence[Placement] | None = None,
    conf: float | None = None,
    iou: float | None = None,
    max_det: int | None = None,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
) -> list[Detections]:
    """Detections of every image of a batch, on the device of the predictions.

    Args:
        predictions: boxes [N, A, 4] in input pixels and scores [N, A, C].
        post: the sheet's rule; its ``conf``, ``iou`` and ``max_det`` hold where the argument is ``None``.
        placements: where each photo lies in the input. With them boxes come out in photo pixels (clamped when
            ``post.clamp``), without them in input pixels.
        conf: rows at or below this score are dropped.
        iou: overlap above which NMS drops the lower score.
        max_det: the most detections of an image.
        classes: keep these classes only. With ``pick="best"`` a row counts for its best class alone.
        agnostic: NMS over all classes together.
    """
    assert predictions.boxes is not None and predictions.scores is not None
    conf = post.conf if conf is None else conf
    iou = post.iou if iou is None else iou
    max_det = post.max_det if max_det is None else max_det
    count = len(predictions.boxes)
    pick = _pick_best if post.pick == "best" else _pick_pairs
    image, row, labels, scores = pick(predictions, post, conf, max_det, classes)
    boxes = predictions.boxes[image, row].float()  # [K, 4]
    if placements is not None:
        boxes = to_photo(boxes, image, placements, clamp=post.clamp)
    real = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    image, boxes, scores, labels = image[real], boxes[real], scores[real], labels[real]
    found = []
    counts = torch.bincount(image, minlength=count).tolist()
    for b, s, c in zip(boxes.split(counts), scores.split(counts), labels.split(counts), strict=True):
        kept = _suppress(b, s, c, iou, agnostic) if post.nms else torch.arange(len(s), device=s.device)
        # equal scores stay in the order of the rows, whatever path NMS took
        kept = kept[s[kept].argsort(descending=True, stable=True)][:max_det]
        found.append(Detections(b[kept], s[kept], c[kept]))
    return found


def to_photo(boxes: Tensor, image: Tensor, placements: Sequence[Placement], *, clamp: bool) -> Tensor:
    """Boxes [K, 4] from input pixels to photo pixels; ``image`` int64 [K] tells which placement each belongs to."""

    def table(values: list[tuple[float, float]]) -> Tensor:  # [K, 4], (x, y) repeated for both corners
        return torch.tensor(values, dtype=torch.float32, device=boxes.device).reshape(-1, 2)[image].repeat(1, 2)

    boxes = (boxes - table([p.offset for p in placements])) / table([p.scale for p in placements])
    if clamp:
        limit = table([(float(p.photo[1]), float(p.photo[0])) for p in placements])
        boxes = torch.minimum(boxes.clamp(min=0), limit)
    return boxes


def to_host(found: list[Detections]) -> list[Detections]:
    """The same on the CPU, with one copy for the whole batch."""
    if not found or found[0].boxes.device.type == "cpu":
        return found
    rows = torch.cat([torch.cat([d.boxes, d.scores[:, None], d.labels[:, None].float()], dim=1) for d in found]).cpu()
    parts = rows.split([len(d) for d in found])
    return [Detections(p[:, :4], p[:, 4], p[:, 5].long()) for p in parts]


Picked = tuple[Tensor, Tensor, Tensor, Tensor]
"""image [K], row [K], label [K], score float32 [K]; grouped by image."""


def _pick_best(
    predictions: Predictions, post: Post, conf: float, max_det: int, classes: Sequence[int] | None
) -> Picked:
    assert predictions.boxes is not None and predictions.scores is not None
    scores, labels = predictions.scores.max(dim=-1)  # [N, A]
    scores = scores.float()
    usable = (scores > conf) & scores.isfinite() & predictions.boxes.isfinite().all(dim=-1)
    if classes is not None:
        usable &= torch.isin(labels, torch.tensor(list(classes), device=labels.device))
    if post.per_level and predictions.levels:
        scores = scores.masked_fill(~usable, -1.0)
        best = _best_of_levels(scores, predictions.levels, post.per_level)
        usable &= torch.zeros_like(usable).scatter_(1, best, True)
    image, row = usable.nonzero(as_tuple=True)
    return image, row, labels[image, row], scores[image, row]


def _pick_pairs(
    predictions: Predictions, post: Post, conf: float, max_det: int, classes: Sequence[int] | None
) -> Picked:
    assert predictions.boxes is not None and predictions.scores is not None
    n, _, c = predictions.scores.shape
    scores = predictions.scores.float()
    # top-k takes a NaN for the largest value, so unusable pairs are pushed below every score first
    usable = scores.isfinite() & predictions.boxes.isfinite().all(dim=-1, keepdim=True)
    if classes is not None:
        wanted = torch.zeros(c, dtype=torch.bool, device=scores.device)
        wanted[torch.tensor([k for k in classes if 0 <= k < c], dtype=torch.int64, device=scores.device)] = True
        usable = usable & wanted
    pairs = scores.masked_fill(~usable, -1.0).flatten(1)  # [N, A * C]
    index = None
    if post.per_level and predictions.levels:
        index = _best_of_levels(pairs, tuple(k * c for k in predictions.levels), post.per_level)
        pairs = pairs.gather(1, index)
    most = max(max_det, NMS_CANDIDATES) if post.nms else max_det
    top, place = pairs.topk(min(most, pairs.shape[1]), dim=1)  # [N, k]
    pair = place if index is None else index.gather(1, place)
    image, rank = (top > conf).nonzero(as_tuple=True)
    chosen = pair[image, rank]
    return image, chosen // c, chosen % c, top[image, rank]


def _best_of_levels(scores: Tensor, levels: tuple[int, ...], most: int) -> Tensor:
    """Indices [N, M] of the ``most`` best entries of each level of ``scores`` [N, sum(levels)]."""
    parts, start = [], 0
    for size in levels:
        parts.append(scores[:, start : start + size].topk(min(most, size), dim=1).indices + start)
        start += size
    return torch.cat(parts, dim=1)


def _suppress(boxes: Tensor, scores: Tensor, labels: Tensor, iou: float, agnostic: bool) -> Tensor:
    if len(boxes) == 0:
        return torch.zeros(0, dtype=torch.int64, device=boxes.device)
    # torchvision separates classes by moving them apart, which needs coordinates at or above zero
    shifted = boxes - boxes.min().clamp(max=0)
    return batched_nms(shifted, scores, torch.zeros_like(labels) if agnostic else labels, iou).sort().values
