"""Boxes: decoding of dense predictions, and overlaps. All boxes are x1 y1 x2 y2 in pixels, float32.

Areas need float32 (640 squared is far above the largest float16), so callers convert before they come here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def boxes_from_offsets(raw: Tensor, cells: Tensor) -> Tensor:
    """Boxes from offsets to the cell corner and log sizes, both in strides (YOLOX, section 2.1).

    Args:
        raw: float32 [N, A, 4], (tx, ty, tw, th).
        cells: float32 [A, 3], the table of ``grids.Cells``.

    Returns:
        float32 [N, A, 4].
    """
    offset, log_size = raw.split(2, -1)
    corner, stride = cells.split((2, 1), -1)
    centre = (offset + corner) * stride
    half = log_size.exp() * (stride * 0.5)
    return torch.cat((centre - half, centre + half), -1)


def boxes_from_distances(distances: Tensor, points: Tensor) -> Tensor:
    """Boxes from distances to left, top, right and bottom (FCOS, section 3.1).

    Args:
        distances: float32 [N, A, 4] in pixels.
        points: float32 [A, 2], x y in pixels, where the distances are measured from.
    """
    before, after = distances.split(2, -1)
    return torch.cat((points - before, points + after), -1)


def pairwise_iou(targets: Tensor, boxes: Tensor, eps: float = 1e-16) -> Tensor:
    """Overlap of every target with every box, without gradient.

    Args:
        targets: float32 [N, M, 4].
        boxes: float32 [N, A, 4].
        eps: added to the union, which is zero only for two empty boxes.

    Returns:
        float32 [N, M, A].
    """
    with torch.no_grad():
        tx1, ty1, tx2, ty2 = targets[:, :, None].unbind(-1)  # [N, M, 1]
        bx1, by1, bx2, by2 = boxes.mT.contiguous()[:, :, None].unbind(1)  # [N, 1, A], contiguous for vector units
        # [N, M, A] is the largest shape of a step and fresh memory costs more than arithmetic, so three buffers do.
        inter, spare = torch.minimum(tx2, bx2), torch.maximum(tx1, bx1)
        inter.sub_(spare).clamp_(min=0)
        height = torch.minimum(ty2, by2).sub_(torch.maximum(ty1, by1, out=spare)).clamp_(min=0)
        inter.mul_(height)
        union = torch.add((tx2 - tx1) * (ty2 - ty1), (bx2 - bx1) * (by2 - by1) + eps, out=spare)
        return inter.div_(union.sub_(inter))


def paired_iou(first: Tensor, second: Tensor, eps: float = 1e-16) -> Tensor:
    """Overlap of boxes [..., 4] with the boxes in the same place, [...], differentiable."""
    low, high = first.chunk(2, -1)
    other_low, other_high = second.chunk(2, -1)
    inter = _area((torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0))
    return inter / (_area(high - low) + _area(other_high - other_low) - inter + eps)


def _area(sides: Tensor) -> Tensor:
    width, height = sides.unbind(-1)
    return width * height
