"""Box sides as distributions over whole numbers of strides (Generalized Focal Loss, Li et al., 2020, section 3.2).

A head gives ``4 * R`` logits per cell: for left, top, right and bottom in turn, R bins at distances 0 to R - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo_kit_yolo.boxes import boxes_from_distances


def split_sides(logits: Tensor) -> Tensor:
    """[..., 4 * R] as [..., 4, R]."""
    return logits.unflatten(-1, (4, -1))


def expectation(probabilities: Tensor) -> Tensor:
    """The mean distance [...] in strides of distributions [..., R]. Not a matrix product, which some devices compute
    in less than float32."""
    bins = torch.arange(probabilities.shape[-1], dtype=probabilities.dtype, device=probabilities.device)
    return (probabilities * bins).sum(-1)


def boxes_from_distributions(logits: Tensor, middle: Tensor, stride: Tensor) -> Tensor:
    """Decoded boxes.

    Args:
        logits: [N, A, 4 * R].
        middle: float32 [A, 2], x y in pixels, where distances are measured from.
        stride: float32 [A, 1], in pixels.

    Returns:
        float32 [N, A, 4], x1 y1 x2 y2 in pixels.
    """
    distances = expectation(split_sides(logits.float()).softmax(-1))  # [N, A, 4], in strides
    return boxes_from_distances(distances * stride, middle)


def distribution_focal(log_probabilities: Tensor, distances: Tensor) -> Tensor:
    """Cross entropy with the two bins around each true distance, weighted by how near they are (equation 6), averaged
    over the sides.

    Args:
        log_probabilities: float32 [..., S, R].
        distances: float32 [..., S] in strides, within 0 and R - 1; without gradient.

    Returns:
        float32 [...].
    """
    sides, count = log_probabilities.shape[-2:]
    bins = torch.arange(count, dtype=distances.dtype, device=distances.device)
    # 1 - |distance - bin| is the weight of the two nearest bins and at most 0 for all others
    share = torch.rsub((distances[..., None] - bins).abs_(), 1.0).clamp_(min=0)
    return (log_probabilities * share).sum((-2, -1)) * (-1.0 / sides)
