"""Boxes: decoding of dense predictions, and overlaps. All boxes are x1 y1 x2 y2 in pixels, float32.

Areas need float32 (640 squared is far above the largest float16), so callers convert before they come here.
"""

from __future__ import annotations

import math

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


ASPECT = 4.0 / math.pi**2
"""Factor of the aspect term of the complete IoU."""


def pairwise_ciou(targets: Tensor, boxes: Tensor, eps: float = 1e-7) -> Tensor:
    """Complete IoU (Zheng et al., 2020, section 3.3) of every target with every box, without gradient.

    Args:
        targets: float32 [N, M, 4].
        boxes: float32 [N, A, 4].
        eps: added to every denominator.

    Returns:
        float32 [N, M, A], at most 1; below 0 for boxes far apart.
    """
    with torch.no_grad():
        target_low, target_high = _by_axis(targets)[..., None]  # x and y first: [2, N, M, 1]
        low, high = _by_axis(boxes).contiguous()[..., None, :]  # [2, N, 1, A]
        target_size, size = target_high - target_low, high - low
        sides = torch.minimum(target_high, high).sub_(torch.maximum(target_low, low))  # [2, N, M, A], below 0 if apart
        diagonal = torch.add(target_size, size).sub_(sides).square_().sum(0).add_(eps)  # of the enclosing box, squared
        iou = _product(sides.clamp_(min=0))
        union = torch.add(_product(target_size), _product(size)).sub_(iou).add_(eps)
        iou.div_(union)
        apart = torch.sub(target_low + target_high, low + high, out=sides).square_().sum(0)  # four times squared
        aspect = (_angle(target_size, eps) - _angle(size, eps)).square_().mul_(ASPECT)
        weight = torch.sub(aspect, iou, out=union).add_(1.0 + eps)
        return iou.sub_(apart.div_(diagonal), alpha=0.25).sub_(aspect.square_().div_(weight))


def paired_ciou(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], eps: float = 1e-7) -> Tensor:
    """Complete IoU (Zheng et al., 2020, section 3.3) of boxes with the boxes in the same place, differentiable; the
    weight of the aspect term carries no gradient, as in the paper.

    Args:
        first, second: low and high corners, float32 [2, ...] with x before y.

    Returns:
        float32 [...].
    """
    (low, high), (other_low, other_high) = first, second
    size, other_size = high - low, other_high - other_low
    sides = torch.minimum(high, other_high) - torch.maximum(low, other_low)
    inter = _product(sides.clamp(min=0))
    iou = inter / (_product(size) + _product(other_size) - inter + eps)
    diagonal = (size + other_size - sides).square().sum(0) + eps
    apart = (low + high - (other_low + other_high)).square().sum(0)
    aspect = (_angle(size, eps) - _angle(other_size, eps)).square() * ASPECT
    with torch.no_grad():
        weight = aspect / (aspect - iou + (1.0 + eps))
    return torch.sub(iou, apart / diagonal, alpha=0.25).addcmul(weight, aspect, value=-1.0)


def _by_axis(boxes: Tensor) -> Tensor:
    """[N, R, 4] as [2, 2, N, R]: low and high corners, of these x and y."""
    return boxes.unflatten(-1, (2, 2)).permute(2, 3, 0, 1)


def _product(sides: Tensor) -> Tensor:
    width, height = sides.unbind()
    return width * height


def _angle(sides: Tensor, eps: float) -> Tensor:
    width, height = sides.unbind()
    return torch.atan2(width, height + eps)


def _area(sides: Tensor) -> Tensor:
    width, height = sides.unbind(-1)
    return width * height
