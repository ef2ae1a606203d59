"""Hungarian matching (Carion et al., 2020, section 3.1) for all layers and images at once.

The cost of every pair is one batched computation on the device; one copy brings it to the host, where each image's
assignment is solved, and one copy brings the indices back.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, iou_giou

_WORST = 1e6


@torch.no_grad()
def pair_cost(
    logits: Tensor,
    boxes: Tensor,
    true_boxes: Tensor,
    labels: Tensor,
    *,
    score: float = 2.0,
    bbox: float = 5.0,
    giou: float = 2.0,
    alpha: float = 0.25,
    eps: float = 1e-6,
) -> Tensor:
    """What it costs to give a true box to a query: focal score cost, L1 distance and negative generalised IoU.

    Args:
        logits: float32 [S, N, Q, C]. ``boxes``: float32 [S, N, Q, 4], cx cy w h; S sets of predictions.
        true_boxes: float32 [N, M, 4], cx cy w h. ``labels``: int64 [N, M].
        score, bbox, giou: weights. ``alpha``: balance of the focal cost. ``eps``: of the overlap.

    Returns:
        float32 [S, N, M, Q].
    """
    sets, n, count, _ = logits.shape
    index = labels[None, :, :, None].expand(sets, n, labels.shape[1], count)
    p = logits.transpose(2, 3).gather(2, index).sigmoid()  # [S, N, M, Q]
    hit = (1 - p).square() * (p + 1e-8).log() * (-alpha * score)
    miss = p.square() * (1 - p + 1e-8).log() * ((alpha - 1) * score)
    distance = torch.cdist(true_boxes.expand(sets, -1, -1, -1), boxes, p=1.0)
    corners, true_corners = (cxcywh_to_xyxy(b, positive=True) for b in (boxes, true_boxes))
    _, overlap = iou_giou(corners[:, :, None], true_corners[:, :, None], eps=eps)
    return hit - miss + bbox * distance - giou * overlap


@torch.no_grad()
def match(cost: Tensor, valid: Tensor) -> Tensor:
    """The query of every true box.

    Args:
        cost: float32 [S, N, M, Q]. ``valid``: bool [N, M], real boxes come first.

    Returns:
        int64 [S, N, M] on the device of ``cost``; -1 for padding, and for the boxes left over when an image has more of
        them than there are queries.
    """
    return assign(_to_host(cost, valid)).to(cost.device, non_blocking=True)


@torch.no_grad()
def match_owners(cost: Tensor, valid: Tensor) -> Tensor:
    """The box of every query in each set and in the union of all sets (GO, D-FINE, section 4.2).

    Where the sets give a query several boxes, the union has the one that most of them gave it, among equals the first;
    a box may then have several queries.

    Args:
        cost: float32 [S, N, M, Q]. ``valid``: bool [N, M], real boxes come first.

    Returns:
        int64 [S + 1, N, Q], -1 for none, the union last; on the device of ``cost``.
    """
    return assign_owners(_to_host(cost, valid)).to(cost.device, non_blocking=True)


def assign_owners(cost: Tensor) -> Tensor:
    """As ``assign``, seen from the queries and with the union: int64 [S + 1, N, Q]."""
    return owners(assign(cost), cost.shape[3])


def owners(query: Tensor, queries: int) -> Tensor:
    """Matches ``query`` [S, N, M] (-1 for none) seen from the queries, their union last: int64 [S + 1, N, queries]."""
    found = query.numpy()
    sets, images, boxes = found.shape
    number = np.arange(boxes)
    owner = np.full((sets + 1, images, queries + 1), -1)  # the last column takes what padding writes
    np.put_along_axis(owner[:sets], found, number[None, None], axis=2)
    votes = np.zeros((images, boxes, queries + 1), dtype=np.int32)
    np.add.at(votes, (np.arange(images)[:, None], number[None], found), 1)
    owner[sets] = np.where(votes.any(1), votes.argmax(1), -1)
    return torch.from_numpy(np.ascontiguousarray(owner[..., :queries]))


def _to_host(cost: Tensor, valid: Tensor) -> Tensor:
    # Infinity marks padding, so that the costs carry the counts and one copy to the host is enough.
    return torch.where(valid[:, :, None], cost.nan_to_num(_WORST, _WORST, -_WORST), float("inf")).cpu()


def assign(cost: Tensor) -> Tensor:
    """Solve every assignment on the host: cost float32 [S, N, M, Q], infinite in padded rows, to int64 [S, N, M]."""
    table = cost.numpy()
    counts = np.isfinite(table[0, :, :, 0]).sum(1)
    queries = np.full(table.shape[:3], -1, dtype=np.int64)
    for image, count in enumerate(counts.tolist()):
        if count:
            for layer in range(len(table)):
                rows, columns = linear_sum_assignment(table[layer, image, :count])
                queries[layer, image, rows] = columns
    return torch.from_numpy(queries)
