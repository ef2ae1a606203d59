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
) -> Tensor:
    """What it costs to give a true box to a query: focal score cost, L1 distance and negative generalised IoU.

    Args:
        logits: float32 [S, N, Q, C]. ``boxes``: float32 [S, N, Q, 4], cx cy w h; S sets of predictions.
        true_boxes: float32 [N, M, 4], cx cy w h. ``labels``: int64 [N, M].
        score, bbox, giou: weights. ``alpha``: balance of the focal cost.

    Returns:
        float32 [S, N, M, Q].
    """
    sets, n, count, _ = logits.shape
    index = labels[None, :, :, None].expand(sets, n, labels.shape[1], count)
    p = logits.transpose(2, 3).gather(2, index).sigmoid()  # [S, N, M, Q]
    hit = (1 - p).square() * (p + 1e-8).log() * (-alpha * score)
    miss = p.square() * (1 - p + 1e-8).log() * ((alpha - 1) * score)
    distance = torch.cdist(true_boxes.expand(sets, -1, -1, -1), boxes, p=1.0)
    _, overlap = iou_giou(cxcywh_to_xyxy(boxes)[:, :, None], cxcywh_to_xyxy(true_boxes)[:, :, None])
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
    # Infinity marks padding, so that the costs carry the counts and one copy to the host is enough.
    cost = torch.where(valid[:, :, None], cost.nan_to_num(_WORST, _WORST, -_WORST), float("inf"))
    return assign(cost.cpu()).to(cost.device, non_blocking=True)


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
